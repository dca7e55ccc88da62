"""What attention sees: the one description that travels from a model through its stack and blocks to each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lm.model.scope.cache import KeyValueCache, RecurrentCache
from lm.model.scope.masks import Mask
from lm.model.scope.relative import RelativeTables
from lm.model.scope.rotation import Rotation


class FirstValues:
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


class ByDistance(Protocol):
    """Positions that attention asks for what the distances of some pairs add, where it never looks at all pairs."""

    def between(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeTables | None]:
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
class Scope:
    """What the positions of a batch attend to in each layer of a stack, and where they stand.

    Self-attention has one scope, and the cross-attention of a decoder that reads a source another. A model says what
    is seen; its stack adds what its positions are and the first values, which all layers share.

    Attributes:
        mask: which keys each query may see.
        memory: (batch, memory length, d_model) states to attend to, instead of the queries' own.
        caches: for each layer, keys and values of earlier positions, extended in place; those of a memory are
            computed once.
        start: the position of the first query.
        branches: how many continuations of the same past stand beside each other in a row. Each goes on from `start`,
            and the mask keeps them apart.
        end: a position after those of all queries, where `query_positions` are given and it is known; else it is
            looked for among them, and a GPU is waited for.
        query_positions: (batch, queries) where the queries stand, branches included, if not one after the other from
            `start` on in each row.
        key_positions: (batch, keys) where the keys stand, if not one after the other from 0 on. It matters to schemes
            that know distances; what a query does not see may have any.
        rotation: turns queries and keys by their positions (rotary embeddings).
        relative: for each layer, what is added to keys and values by their distance.
        by_distance: what knows what distances add, for layers that ask themselves.
        first_values: the values of the first layer, for layers that mix them with their own.
        lengths: (batch,) how many positions of each row are real; what comes after them is padding, which no expert
            takes. None if all are.
        recurrent: what recurrent layers, which attend to nothing, remember of earlier positions; changed in place.
    """

    mask: Mask
    memory: Tensor | None = None
    caches: Sequence[KeyValueCache] | None = None
    start: int = 0
    branches: int = 1
    end: int | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    rotation: Rotation | None = None
    relative: Sequence[RelativeTables] | None = None
    by_distance: ByDistance | None = None
    first_values: FirstValues | None = None
    lengths: Tensor | None = None
    recurrent: RecurrentCache | None = None

    def cache(self, layer: int) -> KeyValueCache | None:
        """The cache of a layer, counted from 0, if there are caches."""
        return None if self.caches is None else self.caches[layer]

    def tables(self, layer: int) -> RelativeTables | None:
        """What a layer, counted from 0, adds to keys and values by their distance, if anything."""
        return None if self.relative is None else self.relative[layer]

    def positions(self, length: int, device: torch.device) -> Tensor:
        """(batch or 1, length) where each of so many queries stands, branches included."""
        if self.query_positions is not None:
            return self.query_positions
        end = self.start + length // self.branches
        return torch.arange(self.start, end, device=device).repeat(self.branches)[None]

    def with_tables(self, tables: Sequence[RelativeTables]) -> Scope:
        """This scope, with what a kind of distance adds to the keys and values of each layer, besides others."""
        if self.relative is not None:
            tables = [replace(one, also=other) for one, other in zip(tables, self.relative, strict=True)]
        return replace(self, relative=tables)

    def distances(self, length: int, device: torch.device) -> Tensor:
        """How far each key stands after each of `length` queries, branches included; negative where it comes first.

        Returns:
            (batch or 1, queries, keys).
        """
        end, queries = self.start + length // self.branches, self.positions(length, device)
        assert self.branches == 1 or self.key_positions is not None, "the keys of branches don't stand in a line"
        keys = torch.arange(end, device=device)[None] if self.key_positions is None else self.key_positions
        return keys[:, None, :] - queries[:, :, None]
