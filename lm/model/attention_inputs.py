"""What attention layers get besides hidden states: mask, KV caches, positions and relative embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lm.model.kv_cache import LayerKVCache
from lm.model.mask import Mask


@dataclass(frozen=True)
class RelativeEmbeddings:
    """Learned embeddings by relative position that one layer adds to its keys and values.

    The sums are never materialised: queries are multiplied by each embedding once and the results gathered by key; the
    attention weights are summed by distance and then multiplied by the value embeddings.

    Attributes:
        rows: (batch or 1, 1, queries, keys) the table row of each query-key pair.
        keys: (kv_heads, distances, head).
        values: like `keys`.
        added: further embeddings to add, by another kind of distance.

    Source: Shaw et al. 2018, equations 3 and 4, and section 3.3.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor
    added: RelativeEmbeddings | None = None

    def scores(self, query: Tensor) -> Tensor:
        """Return what the key embeddings add to the scores: (batch, heads, queries, keys).

        Args:
            query: (batch, heads, queries, head).
        """
        by_distance = _matmul_by_group(query * query.shape[-1] ** -0.5, self.keys.transpose(-1, -2))
        scores = by_distance.gather(-1, self._expand_rows(by_distance))
        return scores if self.added is None else scores + self.added.scores(query)

    def output(self, weights: Tensor) -> Tensor:
        """Return what the value embeddings add to the output: (batch, heads, queries, head).

        Weights are summed in float32 or better: many keys share the rows of the greatest distances.

        Args:
            weights: (batch, heads, queries, keys).
        """
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        summed = exact.new_zeros(*weights.shape[:-1], self.values.shape[1])
        summed = summed.scatter_add(-1, self._expand_rows(weights), exact)
        output = _matmul_by_group(summed.to(weights.dtype), self.values)
        return output if self.added is None else output + self.added.output(weights)

    def _expand_rows(self, pairs: Tensor) -> Tensor:
        batch, heads = pairs.shape[:2]
        return self.rows.expand(batch, heads, -1, -1)


def _matmul_by_group(x: Tensor, tables: Tensor) -> Tensor:
    """(batch, heads, queries, n) @ (kv_heads, n, m) of each head's group -> (batch, heads, queries, m)."""
    batch, heads, queries, n = x.shape
    with torch.autocast(x.device.type, enabled=False):
        grouped = x.reshape(batch, len(tables), -1, n) @ tables.to(x.dtype)
    return grouped.view(batch, heads, queries, -1)


class ValueResidual:
    """The values of a stack's first layer, which every layer mixes with its own.

    Source: Zhou et al. 2024 (Value Residual Learning); the first layer mixes too, as in Jordan et al. 2024
    (modded-nanogpt).
    """

    def __init__(self) -> None:
        self._values: Tensor | None = None

    def mix(self, value: Tensor, weights: Tensor) -> Tensor:
        """Mix the values of the next layer with those of the first, by learned weights.

        A weight is a 0-dimensional tensor, so under autocast the values keep their dtype.

        Args:
            value: (batch, kv_heads, length, head) of the next layer; the first call sets the first layer's values.
            weights: (2,), of the first layer's values and of the layer's own.

        Returns:
            (batch, kv_heads, length, head).
        """
        if self._values is None:
            self._values = value
        first_weight, own_weight = weights
        return first_weight * self._values + own_weight * value


class DistanceBias(Protocol):
    """A relative position scheme that computes biases for given query-key pairs, for sparse attention."""

    def compute_bias(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeEmbeddings | None]:
        """Compute the bias of a layer, counted from 0.

        Args:
            query: (rows, heads, queries, head).
            distances: (rows or 1, queries, keys) position of each key minus that of each query.

        Returns:
            A bias of the scores, broadcastable to (rows, heads, queries, keys), and the embeddings to add to the
            values, if any.
        """


@dataclass(frozen=True)
class AttentionInputs:
    """The mask, KV caches, positions and position biases that attention layers get besides the hidden states.

    Self-attention has one, and cross-attention another. The model sets mask, caches and positions; its stack adds the
    position scheme and the first layer's values, which all layers share.

    Attributes:
        mask: which keys each query may attend to.
        encoder_output: (batch, source length, d_model) states to attend to, in cross-attention.
        caches: for each layer, keys and values of earlier positions, extended in place; those of an encoder output are
            computed once.
        start: the position of the first query.
        query_positions: (batch or 1, queries) positions of the queries, if they are not consecutive from `start`.
        end: an upper bound of `query_positions`.
        key_positions: (batch, keys) positions of the keys [default: consecutive from 0]. Schemes of relative positions
            need them; masked keys may have any.
        rotation: rotates queries and keys by position (rotary embeddings).
        relative_embeddings: of each layer, by relative position.
        distance_bias: computes biases for given pairs, for layers that never form all pairs.
        first_layer_values: the values of the first layer, for layers that mix them with their own.
        lengths: (batch,) real positions in each row; what follows is padding, which is not routed to experts. None if
            all are real.
    """

    mask: Mask
    encoder_output: Tensor | None = None
    caches: Sequence[LayerKVCache] | None = None
    start: int = 0
    query_positions: Tensor | None = None
    end: int = 0
    key_positions: Tensor | None = None
    rotation: Callable[[Tensor], Tensor] | None = None
    relative_embeddings: Sequence[RelativeEmbeddings] | None = None
    distance_bias: DistanceBias | None = None
    first_layer_values: ValueResidual | None = None
    lengths: Tensor | None = None

    def layer_cache(self, layer: int) -> LayerKVCache | None:
        """The cache of a layer, counted from 0, if there are caches."""
        return None if self.caches is None else self.caches[layer]

    def relative_embeddings_of(self, layer: int) -> RelativeEmbeddings | None:
        """The relative embeddings of a layer, counted from 0, if any."""
        return None if self.relative_embeddings is None else self.relative_embeddings[layer]

    def compute_query_positions(self, length: int, device: torch.device) -> Tensor:
        """(batch or 1, length) positions of the queries."""
        if self.query_positions is not None:
            return self.query_positions
        return torch.arange(self.start, self.start + length, device=device)[None]

    def with_relative_embeddings(self, tables: Sequence[RelativeEmbeddings]) -> AttentionInputs:
        """Add relative embeddings, one for each layer, to those that are there."""
        if self.relative_embeddings is not None:
            tables = [
                replace(table, added=embedding)
                for table, embedding in zip(tables, self.relative_embeddings, strict=True)
            ]
        return replace(self, relative_embeddings=tables)

    def compute_distances(self, length: int, device: torch.device) -> Tensor:
        """Return (batch or 1, queries, keys): the position of each key minus that of each of `length` queries."""
        queries, keys = self.compute_query_positions(length, device), self.key_positions
        if keys is None:
            keys = torch.arange(self.start + length, device=device)[None]
        return keys[:, None, :] - queries[:, :, None]
