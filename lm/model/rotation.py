"""Rotary embeddings: queries and keys are turned by angles that grow with their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Turns pairs of features (i, i + head/2) by an angle that grows with the position.

    Attributes:
        cos: (length, head), both halves alike; (batch, 1, length, head) where rows stand elsewhere than others.
        sin: like `cos`, but the first half negative.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate (batch, heads, length, head).

        Source: Su et al. 2021, with features paired as in GPT-NeoX and Llama.
        """
        return _Rotated.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))  # type: ignore[no-untyped-call]

    def repeated(self, times: int) -> Rotation:
        """The rotation of as many sequences of the same positions, one after the other."""
        return self if times == 1 else Rotation(self.cos.repeat(times, 1), self.sin.repeat(times, 1))


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


def rotations(length: int, head_size: int, *, base: float) -> Tensor:
    """Cosines and sines of the angles by which rotary positions turn each pair of features, as `Rotation` has them.

    Returns:
        (length, 2, head_size) float32; features i and i + head_size/2 turn by position / base^(2i / head_size).

    Source: Su et al. 2021, section 3.2.
    """
    frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    sin = torch.cat((-angles.sin(), angles.sin()), dim=1)
    return torch.stack((angles.cos().repeat(1, 2), sin), dim=1).float()
