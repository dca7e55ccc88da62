"""How a model knows where a token stands: the position schemes, one class each, and the embedding.

An absolute scheme gives vectors that are added to the embeddings: it is called with the first position and the number
of positions. A relative scheme changes what attention sees: it is made for a stack, called with the scope of its
self-attention, and returns it with what its positions add. Only `ABSOLUTE` and `RELATIVE` tie schemes to their names.
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
from lm.model.linear import rows
from lm.model.norms import make_norm
from lm.model.positions.distances import BucketedBiases, LinearBiases, RelativePositions
from lm.model.positions.frequencies import Scaling, frequencies
from lm.model.scope.rotation import Rotation, rotations
from lm.model.scope.scope import Scope


def sinusoids(length: int, d_model: int, *, interleaved: bool) -> Tensor:
    """`waves` of the positions 0 … length - 1: (length, d_model) float32."""
    return waves(torch.arange(length, dtype=torch.float64), d_model, interleaved=interleaved).float()


def waves(positions: Tensor, d_model: int, *, interleaved: bool) -> Tensor:
    """Sine and cosine waves of geometrically growing length.

    Args:
        positions: (…,) of a type of floating point, which the waves have too.
        d_model: width, even.
        interleaved: sine and cosine alternate, as in the paper; else all sines come first, as in Marian.

    Returns:
        (…, d_model).

    Source: Vaswani et al. 2017, section 3.5.
    """
    exponents = torch.arange(0, d_model, 2, dtype=positions.dtype, device=positions.device) / d_model
    angles = positions[..., None] / 10_000.0**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1 if interleaved else -2).flatten(-2)


_AT_ONCE = 8192
"""Positions of a context whose values are computed before they are needed; more take memory that few texts use."""


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

    def fill(self, device: torch.device, *, at_least: int | None = None) -> Tensor:
        """Compute the values of all positions of the context; or of `at_least` so many, if it is a long one."""
        if at_least is None:
            number = self._length
        else:
            self._length = max(self._length, at_least)
            number = min(self._length, max(_AT_ONCE, 2 * at_least))
        with torch.inference_mode(False):  # the values outlive an evaluation, and training differentiates past them
            values = self._values = self._compute(number).to(device)
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
        self.table = PositionTable(partial(_rotations, config=config), config.context_length)

    def forward(self, scope: Scope, length: int, device: torch.device) -> Scope:
        """The scope of `length` tokens, with their rotation."""
        if scope.query_positions is not None:
            end = _end(scope.query_positions) if scope.end is None else scope.end
            found = self.table.rows(0, end, device)[scope.query_positions][:, None]
            return replace(scope, rotation=Rotation(*found.unbind(-2)))
        cos, sin = self.table.rows(scope.start, length // scope.branches, device).unbind(1)
        return replace(scope, rotation=Rotation(cos, sin).repeated(scope.branches))


def _rotations(length: int, config: ModelConfig) -> Tensor:
    return rotations(length, frequencies(config), scale=Scaling.of(config).temperature)


def _end(positions: Tensor) -> int:
    """The first position after all of these."""
    return int(positions.max()) + 1


ABSOLUTE: Mapping[str, Callable[[ModelConfig], nn.Module]] = {
    "learned": LearnedPositions,
    "sinusoidal": partial(SinusoidalPositions, interleaved=True),
    "sinusoidal-half": partial(SinusoidalPositions, interleaved=False),
}
"""Schemes for the embedding, by name."""
RELATIVE: Mapping[str, Callable[[ModelConfig, int, bool], nn.Module]] = {
    "rotary": lambda config, *_: RotaryPositions(config),
    "alibi": lambda config, *_: LinearBiases(config),
    "relative": RelativePositions,
    "t5": BucketedBiases,
}
"""Schemes for a stack, by name: made with its number of layers, and whether it is causal."""


def absolute_positions(config: ModelConfig) -> nn.Module | None:
    """The positions of an embedding, if the scheme is absolute."""
    scheme = ABSOLUTE.get(config.positions)
    return None if scheme is None else scheme(config)


def relative_positions(config: ModelConfig, n_layers: int, *, is_causal: bool) -> nn.Module | None:
    """The positions of a stack of so many layers, if the scheme is relative."""
    scheme = RELATIVE.get(config.positions)
    return None if scheme is None else scheme(config, n_layers, is_causal)


class Embedding(nn.Module):
    """Tokens to vectors: the token's own, scaled if asked, plus its position's in an absolute scheme, with dropout.

    If asked, their sum is normalised, and the vector of the first type of tokens added before, which all are of.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; normalised: Devlin et al. 2019 (in their code).
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.types = nn.Parameter(torch.empty(config.token_types, config.d_model)) if config.token_types else None
        self.positions = absolute_positions(config)
        self.norm = make_norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        tokens: Tensor,
        *,
        start: int = 0,
        branches: int = 1,
        positions: Tensor | None = None,
        end: int | None = None,
        combine: Callable[[Tensor | None], Tensor] | None = None,
    ) -> Tensor:
        """Embed (batch, length) ids as (batch, length, d_model).

        Args:
            tokens: the ids.
            start: the position of the first one.
            branches: how many sequences stand beside each other in a row, each of them from `start` on.
            positions: (batch, length) where each stands, if not there.
            end: a position after all of these, if it is known.
            combine: makes what is added to (batch, length, d_model) of the scheme's own vectors, if it has some.
        """
        x = rows(self.tokens.weight, tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.types is not None:
            x = x + self.types[0].to(x.dtype)
        vectors = None
        if self.positions is not None and positions is not None:
            vectors = self.positions(0, _end(positions) if end is None else end, tokens.device)[positions]
        elif self.positions is not None:
            vectors = self.positions(start, tokens.shape[1] // branches, tokens.device)
            vectors = vectors if branches == 1 else vectors.repeat(branches, 1)
        if combine is not None:
            vectors = combine(vectors)
        if vectors is not None:
            x = x + vectors.to(x.dtype)
        return self.dropout(x if self.norm is None else self.norm(x))
