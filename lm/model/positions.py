"""How a model knows where a token stands: the position schemes, one class each, and the embedding.

An absolute scheme gives vectors that are added to the embeddings: it is called with the first position and the number
of positions. A relative scheme changes what attention sees: it is called with the scope of a stack's self-attention,
and returns it with what its positions add. Only `ABSOLUTE` and `RELATIVE` tie schemes to their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.dropout import Dropout
from lm.model.rotation import Rotation, rotations
from lm.model.scope import Scope


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


class PositionTable(nn.Module):
    """Values by position, computed once, and again when a longer sequence comes.

    They are no parameter or buffer: they are not saved, and stay float32 when the model is cast.
    """

    def __init__(self, compute: Callable[[int], Tensor], length: int) -> None:
        super().__init__()
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


class SinusoidalPositions(nn.Module):
    """Vectors of sines and cosines, `sinusoids`; they go on beyond the trained length."""

    def __init__(self, config: ModelConfig, *, interleaved: bool) -> None:
        super().__init__()
        compute = partial(sinusoids, d_model=config.d_model, interleaved=interleaved)
        self.table = PositionTable(compute, config.context_length)

    def forward(self, start: int, length: int, device: torch.device) -> Tensor:
        """(length, d_model) to be added to the embeddings."""
        return self.table.rows(start, length, device)


class RotaryPositions(nn.Module):
    """Angles by which queries and keys are turned; they go on beyond the trained length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        compute = partial(rotations, head_size=config.head_size, base=config.rope_base)
        self.table = PositionTable(compute, config.context_length)

    def forward(self, scope: Scope, length: int, device: torch.device) -> Scope:
        """The scope of `length` tokens, with their rotation."""
        cos, sin = self.table.rows(scope.start, length // scope.branches, device).unbind(1)
        return replace(scope, rotation=Rotation(cos, sin).repeated(scope.branches))


class LinearBiases(nn.Module):
    """Attention scores that fall with distance, each head at a rate of its own; they go on beyond the trained length.

    Source: Press et al. 2022 (ALiBi).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.slopes = slopes(config.n_heads)

    def forward(self, scope: Scope, length: int, device: torch.device) -> Scope:
        """The scope of `length` tokens, with a bias in its mask."""
        assert scope.branches == 1, "the keys of branches don't stand in the order of their positions"
        return replace(scope, mask=scope.mask.with_bias(self.biases(length, scope.start + length, device)))

    def biases(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
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


Scheme = Callable[[ModelConfig], nn.Module]

ABSOLUTE: Mapping[str, Scheme] = {
    "learned": LearnedPositions,
    "sinusoidal": partial(SinusoidalPositions, interleaved=True),
    "sinusoidal-half": partial(SinusoidalPositions, interleaved=False),
}
RELATIVE: Mapping[str, Scheme] = {"rotary": RotaryPositions, "alibi": LinearBiases}


def make_positions(schemes: Mapping[str, Scheme], config: ModelConfig) -> nn.Module | None:
    """The positions of a model, if its scheme is one of these."""
    scheme = schemes.get(config.positions)
    return None if scheme is None else scheme(config)


class Embedding(nn.Module):
    """Tokens to vectors: the token's own, scaled if asked, plus its position's in an absolute scheme, with dropout.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions = make_positions(ABSOLUTE, config)
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, *, start: int = 0, branches: int = 1) -> Tensor:
        """Embed (batch, length) ids as (batch, length, d_model).

        Args:
            tokens: the ids.
            start: the position of the first one.
            branches: how many sequences stand beside each other in a row, each of them from `start` on.
        """
        x = self.tokens(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            vectors = self.positions(start, tokens.shape[1] // branches, tokens.device)
            x = x + (vectors if branches == 1 else vectors.repeat(branches, 1)).to(x.dtype)
        return self.dropout(x)
