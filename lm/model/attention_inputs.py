"""What the layers of a stack share in a forward pass: mask, KV caches, positions and relative embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lm.model.kv_cache import LayerKVCache
from lm.model.masks import Mask


@dataclass(frozen=True)
class RelativeEmbeddings:
    """The vectors of one layer that are added to its keys and values, as far as each lies from the query.

    Neither sum is ever made: a query is multiplied by each vector once, and the products are handed to the keys; the
    weights of the keys are summed by distance, and the sums weigh the vectors.

    Attributes:
        rows: (batch or 1, 1, queries, keys) which row of the tables belongs to each pair.
        keys: (kv_heads, distances, head).
        values: like `keys`.
        added: what another kind of distance adds besides.

    Source: Shaw et al. 2018, equations 3 and 4, and section 3.3.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor
    added: RelativeEmbeddings | None = None

    def scores(self, query: Tensor) -> Tensor:
        """What the keys' vectors add to the scores of (batch, heads, queries, head): (batch, heads, queries, keys)."""
        products = _matmul_by_group(query * query.shape[-1] ** -0.5, self.keys.transpose(-1, -2))
        scores = products.gather(-1, self._expand_rows(products))
        return scores if self.added is None else scores + self.added.scores(query)

    def output(self, weights: Tensor) -> Tensor:
        """What (batch, heads, queries, keys) weights give of the values' vectors: (batch, heads, queries, head).

        Weights are summed in float32 at least: many keys share the rows of the greatest distances.
        """
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        summed = exact.new_zeros(*weights.shape[:-1], self.values.shape[1])
        summed = summed.scatter_add(-1, self._expand_rows(weights), exact)
        output = _matmul_by_group(summed.to(weights.dtype), self.values)
        return output if self.added is None else output + self.added.output(weights)

    def _expand_rows(self, of_pairs: Tensor) -> Tensor:
        batch, heads = of_pairs.shape[:2]
        return self.rows.expand(batch, heads, -1, -1)


def _matmul_by_group(x: Tensor, tables: Tensor) -> Tensor:
    """(batch, heads, queries, n) times the (kv_heads, n, m) of each head's group -> (batch, heads, queries, m)."""
    batch, heads, queries, n = x.shape
    with torch.autocast(x.device.type, enabled=False):
        grouped = x.reshape(batch, len(tables), -1, n) @ tables.to(x.dtype)
    return grouped.view(batch, heads, queries, -1)


class FirstLayerValues:
    """The values of the first layer of a stack, which every layer mixes with its own.

    Source: Zhou et al. 2024 (Value Residual Learning); for the first layer too, as in Jordan et al. 2024
    (modded-nanogpt), so that all are alike.
    """

    def __init__(self) -> None:
        self._values: Tensor | None = None

    def mix(self, value: Tensor, shares: Tensor) -> Tensor:
        """Mix the values of the next layer with those of the first, in learned shares.

        A share is a tensor without dimensions, so under autocast the values keep their type.

        Args:
            value: (batch, kv_heads, length, head) of the next layer; the first call sets those of the first layer.
            shares: (2,), the share of the first layer's values and that of the layer's own.

        Returns:
            (batch, kv_heads, length, head).
        """
        if self._values is None:
            self._values = value
        of_first, of_own = shares
        return of_first * self._values + of_own * value


class DistanceBias(Protocol):
    """Positions that attention asks for what the distances of some pairs add, where it never looks at all pairs."""

    def compute_bias(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeEmbeddings | None]:
        """What distances add in a layer, counted from 0.

        Args:
            query: (rows, heads, queries, head).
            distances: (rows or 1, queries, keys) how far each key stands after each query.
            layer: the layer.

        Returns:
            What is added to the scores, broadcastable to (rows, heads, queries, keys), and what to the values, if
            anything.
        """


@dataclass(frozen=True)
class AttentionInputs:
    """What the positions of a batch attend to in each layer of a stack, and where they stand.

    Self-attention has one scope, and the cross-attention of a decoder that reads a source another. A model says what
    is seen; its stack adds what its positions are and the first values, which all layers share.

    Attributes:
        mask: which keys each query may see.
        memory: (batch, memory length, d_model) states to attend to, instead of the queries' own.
        caches: for each layer, keys and values of earlier positions, extended in place; those of a memory are
            computed once.
        start: the position of the first query.
        n_branches: how many continuations of the same past stand beside each other in a row. Each goes on from `start`,
            and the mask keeps them apart.
        end: a position after those of all queries, where `query_positions` are given and it is known; else it is
            looked for among them, and a GPU is waited for.
        query_positions: (batch, queries) where the queries stand, branches included, if not one after the other from
            `start` on in each row.
        key_positions: (batch, keys) where the keys stand, if not one after the other from 0 on. It matters to schemes
            that know distances; what a query does not see may have any.
        rotation: turns queries and keys by their positions (rotary embeddings).
        relative_embeddings: for each layer, what is added to keys and values by their distance.
        distance_bias: what knows what distances add, for layers that ask themselves.
        first_layer_values: the values of the first layer, for layers that mix them with their own.
        lengths: (batch,) how many positions of each row are real; what comes after them is padding, which no expert
            takes. None if all are.
    """

    mask: Mask
    encoder_output: Tensor | None = None
    caches: Sequence[LayerKVCache] | None = None
    start: int = 0
    n_branches: int = 1
    end: int | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    rotation: Callable[[Tensor], Tensor] | None = None
    relative_embeddings: Sequence[RelativeEmbeddings] | None = None
    distance_bias: DistanceBias | None = None
    first_layer_values: FirstLayerValues | None = None
    lengths: Tensor | None = None

    def layer_cache(self, layer: int) -> LayerKVCache | None:
        """The cache of a layer, counted from 0, if there are caches."""
        return None if self.caches is None else self.caches[layer]

    def relative_embeddings_of(self, layer: int) -> RelativeEmbeddings | None:
        """What a layer, counted from 0, adds to keys and values by their distance, if anything."""
        return None if self.relative_embeddings is None else self.relative_embeddings[layer]

    def compute_query_positions(self, length: int, device: torch.device) -> Tensor:
        """(batch or 1, length) where each of so many queries stands, branches included."""
        if self.query_positions is not None:
            return self.query_positions
        end = self.start + length // self.n_branches
        return torch.arange(self.start, end, device=device).repeat(self.n_branches)[None]

    def with_relative_embeddings(self, tables: Sequence[RelativeEmbeddings]) -> AttentionInputs:
        """This scope, with what a kind of distance adds to the keys and values of each layer, besides others."""
        if self.relative_embeddings is not None:
            tables = [replace(one, added=other) for one, other in zip(tables, self.relative_embeddings, strict=True)]
        return replace(self, relative_embeddings=tables)

    def compute_distances(self, length: int, device: torch.device) -> Tensor:
        """How far each key stands after each of `length` queries, branches included; negative where it comes first.

        Returns:
            (batch or 1, queries, keys).
        """
        end, queries = self.start + length // self.n_branches, self.compute_query_positions(length, device)
        assert self.n_branches == 1 or self.key_positions is not None, "the keys of branches don't stand in a line"
        keys = torch.arange(end, device=device)[None] if self.key_positions is None else self.key_positions
        return keys[:, None, :] - queries[:, :, None]
