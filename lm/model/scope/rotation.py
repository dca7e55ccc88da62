"""Rotary embeddings: queries and keys are turned by angles that grow with their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Turns pairs of features (i, i + turned/2) by an angle that grows with the position.

    Attributes:
        cos: (length, turned), both halves alike; (batch, 1, length, turned) where rows stand elsewhere than others.
            What a head has beyond the turned features stays as it is.
        sin: like `cos`, but the first half negative.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate (batch, heads, length, head).

        Source: Su et al. 2021, with features paired as in GPT-NeoX and Llama.
        """
        turned = self.cos.shape[-1]
        if turned == x.shape[-1]:
            return self._turn(x)
        return torch.cat((self._turn(x[..., :turned]), x[..., turned:]), dim=-1)

    def _turn(self, x: Tensor) -> Tensor:
        return _Rotated.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))  # type: ignore[no-untyped-call]

    def repeated(self, times: int) -> Rotation:
        """The rotation of as many sequences of the same positions, one after the other."""
        return self if times == 1 else Rotation(self.cos.repeat(times, 1), self.sin.repeat(times, 1))

    def every(self, step: int, *, first: int) -> Rotation:
        """The rotation of every `step`-th position, from `first` on."""
        return Rotation(self.cos[first::step], self.sin[first::step])


class _Rotated(torch.autograd.Function):
    """The gradient of a rotation is turned back: three passes, where torch on its own takes seven."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: ANN401 (torch's own)
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


def rotations(length: int, frequencies: Tensor, *, scale: float = 1.0) -> Tensor:
    """Cosines and sines of the angles by which rotary positions turn each pair of features, as `Rotation` has them.

    Args:
        length: number of positions.
        frequencies: (turned/2,) float64, radians from one position to the next.
        scale: of cosines and sines alike.

    Returns:
        (length, 2, turned) float32; features i and i + turned/2 turn by position · frequencies[i].

    Source: Su et al. 2021, section 3.2.
    """
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    sin = torch.cat((-angles.sin(), angles.sin()), dim=1)
    return torch.stack((angles.cos().repeat(1, 2), sin), dim=1).mul_(scale).float()
