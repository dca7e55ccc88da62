"""Schemes that know positions by their distances: biases of the scores, and vectors for keys and values.

Each is called with the scope of a stack's self-attention, and returns it with what its positions add.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.scope.patterns import remembered
from lm.model.scope.relative import RelativeTables
from lm.model.scope.scope import Scope

BUCKETS = 32
"""Of T5's distances, in encoders half of them for each direction."""


class LinearBiases(nn.Module):
    """Attention scores that fall with distance, each head at a rate of its own; they go on beyond the trained length.

    Source: Press et al. 2022 (ALiBi).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.is_asked = config.n_heads, config.attention != "full"

    def forward(self, scope: Scope, length: int, device: torch.device) -> Scope:
        """The scope of `length` tokens, with a bias in its mask."""
        if self.is_asked:
            return replace(scope, by_distance=self)
        return replace(scope, mask=scope.mask.with_bias(self._biases(scope.distances(length, device))))

    def between(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, None]:  # noqa: ARG002
        """What some distances add to the scores; see `ByDistance`."""
        return self._biases(distances), None

    def _biases(self, distances: Tensor) -> Tensor:
        return -(_rates(self.heads, distances.device)[:, None, None] * distances[:, None].abs())


@remembered
def _rates(heads: int, device: torch.device) -> Tensor:
    """(heads,) float32 `slopes`, which are brought to a device once."""
    return torch.tensor(slopes(heads), device=device)


def slopes(heads: int) -> list[float]:
    """The rates of the heads: 2^(-8/heads), its square and so on; between powers of two, every other of the next one's.

    Source: Press et al. 2022, section 3 and their code.
    """
    power = 1 << (heads.bit_length() - 1)
    whole = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return whole if power == heads else whole + slopes(2 * power)[::2][: heads - power]


class BucketedBiases(nn.Module):
    """A learned bias of the scores for each head and bucket of distances, the same in all layers of a stack.

    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    def __init__(self, config: ModelConfig, _n_layers: int, is_causal: bool) -> None:
        super().__init__()
        self.is_causal, self.farthest, self.is_asked = is_causal, config.farthest, config.attention != "full"
        self.biases = nn.Parameter(torch.empty(BUCKETS, config.n_heads))

    def forward(self, scope: Scope, length: int, device: torch.device) -> Scope:
        """The scope of `length` tokens, with a bias in its mask."""
        if self.is_asked:
            return replace(scope, by_distance=self)
        return replace(scope, mask=scope.mask.with_bias(self._biases(scope.distances(length, device))))

    def between(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, None]:  # noqa: ARG002
        """What some distances add to the scores; see `ByDistance`."""
        return self._biases(distances), None

    def _biases(self, distances: Tensor) -> Tensor:
        found = buckets(distances, is_causal=self.is_causal, farthest=self.farthest)
        return F.embedding(found, self.biases).movedim(-1, 1).contiguous()


def buckets(distances: Tensor, *, is_causal: bool, farthest: int) -> Tensor:
    """The bucket of each distance of a key from its query, negative where the key comes first.

    Half of the buckets of a direction have one distance each, and the others grow with its logarithm up to `farthest`;
    the last has all that lies beyond. Where a stack is causal there is one direction.

    Source: Raffel et al. 2020 (T5), section 2.1 and their code.
    """
    of_direction = BUCKETS if is_causal else BUCKETS // 2
    single = of_direction // 2
    far = (-distances).clamp(min=0) if is_causal else distances.abs()
    share = (far.clamp(min=single).float() / single).log() / math.log(farthest / single)
    logarithmic = (single + (share * (of_direction - single)).long()).clamp(max=of_direction - 1)
    found = torch.where(far < single, far, logarithmic)
    return found if is_causal else found + of_direction * (distances > 0)


class DistanceTables(nn.Module):
    """Learned vectors for keys and values by a clipped distance from the query, for each layer and head.

    Source: Shaw et al. 2018, sections 3.1 and 3.2.
    """

    def __init__(self, config: ModelConfig, n_layers: int, *, before: int, after: int) -> None:
        """Tables for so many layers, and for distances from -before to after."""
        super().__init__()
        self.before, self.after, self.is_asked = before, after, config.attention != "full"
        shape = (n_layers, config.kv_heads, before + 1 + after, config.head_size)
        self.keys, self.values = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))

    def added(self, scope: Scope, distances: Tensor) -> Scope:
        """The scope with the tables of each layer, given (batch or 1, queries, keys) distances."""
        rows = self._rows(distances)
        layers = zip(self.keys, self.values, strict=True)
        return scope.with_tables([RelativeTables(rows, keys, values) for keys, values in layers])

    def _rows(self, distances: Tensor) -> Tensor:
        return distances[:, None].clamp(-self.before, self.after) + self.before


class RelativePositions(DistanceTables):
    """Vectors for keys and values by how far they stand from the query in the sequence.

    A causal stack has none for keys after the query, which it never sees.
    """

    def __init__(self, config: ModelConfig, n_layers: int, is_causal: bool) -> None:
        super().__init__(config, n_layers, before=config.farthest, after=0 if is_causal else config.farthest)

    def forward(self, scope: Scope, length: int, device: torch.device) -> Scope:
        """The scope of `length` tokens, with the tables of each layer."""
        if self.is_asked:
            return replace(scope, by_distance=self)
        return self.added(scope, scope.distances(length, device))

    def between(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeTables]:
        """What some distances add to the scores of queries, and to the values; see `ByDistance`."""
        tables = RelativeTables(self._rows(distances), self.keys[layer], self.values[layer])
        return tables.scores(query), tables
