"""Attention within a pattern: queries block by block, each with the keys of the blocks that it sees and no others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.model.attention.attention import attend
from lm.model.attention.chunks import even_chunks, in_chunks
from lm.model.scope.masks import Mask
from lm.model.scope.patterns import Pattern, block_table
from lm.model.scope.scope import ByDistance

_HELD = 1 << 22
"""Numbers that are kept for the backward pass; what would need more is computed again there, in parts that do not."""


def blocks_pay(pattern: Pattern, length: int, *, is_causal: bool) -> bool:
    """Whether a query meets at most half of the keys of a sequence that way."""
    if length <= 2 * pattern.whole:
        return False
    return 2 * pattern.most(is_causal=is_causal) * pattern.block <= length


@dataclass(frozen=True)
class BlockAttention:
    """Attention of a sequence to itself within a pattern, in time and memory that grow with its length alone.

    Attributes:
        pattern: which positions see which.
        mask: whether that is causal, and how many keys are real.
        by_distance: what knows what distances add, if they do.
        layer: which layer asks for it.
        dropout: share of the attention weights to drop.

    Source: Zaheer et al. 2020, appendix D (blocks are gathered, and multiplied as dense matrices).
    """

    pattern: Pattern
    mask: Mask
    by_distance: ByDistance | None = None
    layer: int = 0
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What (batch, heads, length, head) queries find in (batch, kv_heads, length, head) keys and values."""
        length, block = query.shape[2], self.pattern.block
        room = (0, 0, 0, -length % block)
        query, key, value = (F.pad(x, room).unflatten(2, (-1, block)) for x in (query, key, value))
        table = block_table(self.pattern, query.shape[2], is_causal=self.mask.is_causal).to(query.device)

        def attended(first: int, end: int) -> Tensor:
            sees_all = first < self.pattern.everywhere
            seen = torch.arange(len(table), device=table.device).expand(end, -1) if sees_all else table[:end]
            return self._rows(query[:, :, first:end], key, value, seen[first:], first=first, length=length)

        return in_chunks(attended, self._chunks(query, key, table), draws=self.dropout > 0)[:, :, :length]

    def _chunks(self, query: Tensor, key: Tensor, table: Tensor) -> list[tuple[int, int]]:
        """Blocks of queries to be computed together; those that see everything apart."""
        batch, heads, blocks, block, head = query.shape
        numbers = batch * block * table.shape[1] * (2 * key.shape[1] * head + heads * block)
        everywhere = min(self.pattern.everywhere, blocks)
        first = [(0, everywhere)] if everywhere else []
        return first + even_chunks(blocks, numbers, most=_HELD, start=everywhere)

    def _rows(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, *, first: int, length: int) -> Tensor:
        """(batch, heads, positions, head): what some blocks of queries find in those they see, (blocks, most) of them.

        To `attend` each block is a row of its own.
        """
        batch, heads, blocks, block, head = query.shape
        query = query.transpose(1, 2).flatten(0, 1)
        places = torch.arange(block, device=seen.device)
        queries = ((first + torch.arange(blocks, device=seen.device))[:, None] * block + places)[..., None]
        keys = (seen.clamp(min=0)[..., None] * block + places).flatten(1)[:, None]
        bias, relative = None, None
        if self.by_distance is not None:
            distances = (keys - queries).repeat(batch, 1, 1)
            bias, relative = self.by_distance.between(query, distances, layer=self.layer)
        sees_whole_block = seen.shape[1] == 1 and self.pattern.whole >= block
        if sees_whole_block and self.mask.is_causal and self.mask.key_lengths is None:
            mask = Mask.causal(bias=bias)
        else:
            pairs = self._pairs(queries, keys, (seen >= 0).repeat_interleave(block, 1)[:, None], length)
            mask = Mask(pairs=pairs.expand(batch, -1, -1, -1).flatten(0, 1)[:, None], bias=bias)
        key, value = (_gathered(x, seen) for x in (key, value))
        found = attend(query, key, value, mask=mask, dropout=self.dropout, relative=relative)
        return found.view(batch, blocks, heads, block, head).transpose(1, 2).flatten(2, 3)

    def _pairs(self, queries: Tensor, keys: Tensor, exists: Tensor, length: int) -> Tensor:
        """(batch or 1, blocks, queries, keys) booleans: what the pattern, causality and padding leave."""
        within = -(-length // self.pattern.block) * self.pattern.block
        pairs = self.pattern.sees(queries, keys, within=within) & exists
        if self.mask.is_causal:
            pairs &= keys <= queries
        else:
            pairs &= keys < length
        if self.mask.key_lengths is None:
            return pairs[None]
        return pairs & (keys < self.mask.key_lengths[:, None, None, None])


def _gathered(x: Tensor, seen: Tensor) -> Tensor:
    """(batch, heads, blocks, block, head) -> (batch · rows, heads, most · block, head): for each row what it sees."""
    batch, heads, _, block, head = x.shape
    rows, most = seen.shape
    found = x.index_select(2, seen.clamp(min=0).flatten()).view(batch, heads, rows, most * block, head)
    return found.transpose(1, 2).reshape(batch * rows, heads, most * block, head)
