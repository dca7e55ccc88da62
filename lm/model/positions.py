"""How a model knows where a token stands: learned or sinusoidal vectors added to it, or rotated queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.dropout import Dropout


def sinusoids(length: int, d_model: int, *, interleaved: bool) -> Tensor:
    """Sine and cosine waves of geometrically growing length.

    Args:
        length: number of positions.
        d_model: width, even.
        interleaved: sine and cosine alternate, as in the paper; else all sines come first, as in Marian.

    Returns:
        (length, d_model) float32.

    Source: Vaswani et al. 2017, section 3.5.
    """
    if interleaved:
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    else:
        exponents = torch.arange(d_model // 2, dtype=torch.float64) * 2 / d_model
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10_000.0**exponents
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1 if interleaved else -2)
    return waves.flatten(1).float()


@dataclass(frozen=True)
class Rotation:
    """Turns pairs of features (i, i + head/2) by an angle that grows with the position.

    Attributes:
        cos: (length, head), both halves alike.
        sin: (length, head), the first half negative.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate (batch, heads, length, head).

        Source: Su et al. 2021, with features paired as in GPT-NeoX and Llama.
        """
        return _Rotated.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))  # type: ignore[no-untyped-call]


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


class PositionTable:
    """Values by position, computed once and again when a longer sequence comes.

    Not a parameter or buffer: it is not saved, and stays float32 when the model is cast.
    """

    def __init__(self, compute: Callable[[int], Tensor], length: int) -> None:
        self._compute, self._length = compute, length
        self._values: Tensor | None = None

    def rows(self, start: int, length: int, device: torch.device) -> Tensor:
        """Values of positions start … start + length - 1."""
        values = self._values  # another thread may change it at any time
        if values is None or values.device != device or start + length > len(values):
            values = self.fill(device, at_least=start + length)
        return values[start : start + length]

    def fill(self, device: torch.device, *, at_least: int = 0) -> Tensor:
        """Compute the values of all positions of the context, or of more."""
        self._length = longest = max(self._length, at_least)
        with torch.inference_mode(False):  # the values outlive an evaluation, and training differentiates past them
            values = self._values = self._compute(longest).to(device)
        return values


class SinusoidalPositions(nn.Module):
    """Vectors of sines and cosines; goes on beyond the trained length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        interleaved = config.positions == "sinusoidal"
        self.table = PositionTable(
            partial(sinusoids, d_model=config.d_model, interleaved=interleaved), config.context_length
        )

    def forward(self, start: int, length: int, device: torch.device) -> Tensor:
        """(length, d_model) to be added to the embeddings."""
        return self.table.rows(start, length, device)


class RotaryPositions(nn.Module):
    """Angles for queries and keys; goes on beyond the trained length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        compute = partial(rotations, head_size=config.head_size, base=config.rope_base)
        self.table = PositionTable(compute, config.context_length)

    def forward(self, start: int, length: int, device: torch.device) -> Rotation:
        """The rotation of positions start … start + length - 1."""
        cos, sin = self.table.rows(start, length, device).unbind(1)
        return Rotation(cos, sin)


class LinearBiases(nn.Module):
    """Attention scores that fall with distance, each head at a rate of its own; goes on beyond the trained length.

    Source: Press et al. 2022 (ALiBi).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.slopes = slopes(config.n_heads)

    def forward(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """(1, heads, queries, keys) to be added to the scores; the queries stand at the last positions of the keys."""
        keys = torch.arange(n_keys, device=device)
        distance = keys[n_keys - n_queries :, None] - keys
        rates = torch.tensor(self.slopes, device=device)
        return -(rates[:, None, None] * distance.clamp(min=0))[None]


def slopes(heads: int) -> list[float]:
    """The rates of the heads: 2^(-8/heads), its square and so on; between powers of two, every other of the next one's.

    Source: Press et al. 2022, section 3 and their code.
    """
    power = 1 << (heads.bit_length() - 1)
    whole = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return whole if power == heads else whole + slopes(2 * power)[::2][: heads - power]


class LearnedPositions(nn.Module):
    """A trained vector for each position of the context, and none beyond."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.context_length, config.d_model))

    def forward(self, start: int, length: int, _device: torch.device) -> Tensor:
        """(length, d_model) to be added to the embeddings; UsageError beyond the table."""
        if start + length > len(self.weight):
            raise UsageError(
                f"learned positions end at {len(self.weight)}, but the sequence has {start + length} tokens (--context)"
            )
        return self.weight[start : start + length]


class Embedding(nn.Module):
    """Tokens to vectors: the token's own, scaled if asked, plus its position's, with dropout.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions: nn.Module | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config)
        elif config.positions.startswith("sinusoidal"):
            self.positions = SinusoidalPositions(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, *, start: int = 0) -> Tensor:
        """(batch, length) ids at positions start … -> (batch, length, d_model)."""
        x = self.tokens(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(start, tokens.shape[1], tokens.device).to(x.dtype)
        return self.dropout(x)
