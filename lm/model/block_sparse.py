"""Block-sparse attention: sliding windows, local blocks and BigBird, computed block by block where that is faster.

Positions are cut into blocks, and a pattern says which blocks attend to which, so that others can be skipped. The
pattern of two positions doesn't depend on the sequence length: cached and padded sequences give the same results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model.attention import AttentionInputs, Mask, MultiHeadAttention, attend

_MASKED_ON_GPU = 4096
"""Positions up to which a GPU computes all pairs of a sequence and masks most, faster than it gathers blocks."""
_LARGEST_BLOCK = 64
"""The largest block of a window: larger ones gather less, but compute more masked pairs."""


@dataclass(frozen=True)
class SlidingWindow:
    """A sliding window: each position attends to those at most `max_distance` away.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """

    max_distance: int
    n_dense_blocks = 0

    @property
    def block_size(self) -> int:
        """The window's reach, rounded down to a power of two, within limits."""
        return min(_LARGEST_BLOCK, 1 << max(4, self.max_distance.bit_length() - 1))

    @property
    def dense_length(self) -> int:
        """The reach of the first position."""
        return self.max_distance + 1

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """Blocks whose nearest positions are within reach."""
        blocks = torch.arange(n_blocks)
        return ((blocks[:, None] - blocks).abs() - 1) * self.block_size < self.max_distance

    def build_token_mask(self, queries: Tensor, keys: Tensor, _n_positions: int) -> Tensor:
        return (queries - keys).abs() <= self.max_distance


@dataclass(frozen=True)
class LocalBlocks:
    """Local attention: each position attends to its own block.

    Source: Liu et al. 2018, section 4.2.2 (local attention).
    """

    block_size: int
    n_dense_blocks = 0

    @property
    def dense_length(self) -> int:
        return self.block_size

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """The diagonal."""
        return torch.eye(n_blocks, dtype=torch.bool)

    def build_token_mask(self, queries: Tensor, keys: Tensor, _n_positions: int) -> Tensor:
        return queries // self.block_size == keys // self.block_size


@dataclass(frozen=True)
class BigBird:
    """BigBird: each block attends to itself, its neighbours, the first (global) blocks, and a few random ones.

    Global blocks attend to all, unless the mask is causal. The random blocks depend on layer and block alone: in a
    causal stack they are earlier ones; else as many earlier as later ones, except beyond the end.

    Source: Zaheer et al. 2020, section 2 (the variant without added tokens, ITC).
    """

    block_size: int
    global_blocks: int
    random_blocks: int
    layer: int
    is_causal: bool

    @property
    def dense_length(self) -> int:
        """The global blocks and two neighbours."""
        return (self.global_blocks + 2) * self.block_size

    @property
    def n_dense_blocks(self) -> int:
        """The global blocks, if not causal."""
        return 0 if self.is_causal else self.global_blocks

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """The random blocks are the candidates with the smallest hashes."""
        query, key = torch.arange(n_blocks)[:, None], torch.arange(2 * n_blocks)
        fixed = ((query - key).abs() <= 1) | (key < self.global_blocks)
        free = ~fixed & (key < (query if self.is_causal else 2 * (query + 1)))
        numbers = torch.where(free, _hash_block_pairs(self.layer, query, key), 1 << 31)
        random_blocks = numbers.argsort(dim=1, stable=True)[:, : self.random_blocks]
        connected = fixed.scatter(1, random_blocks, True) & (fixed | free)
        return (connected | (query < self.n_dense_blocks))[:, :n_blocks]

    def build_token_mask(self, queries: Tensor, keys: Tensor, n_positions: int) -> Tensor:
        blocks = _block_mask(self, -(-n_positions // self.block_size)).to(queries.device)
        return blocks[queries // self.block_size, keys // self.block_size]


def _hash_block_pairs(layer: int, query: Tensor, key: Tensor) -> Tensor:
    """A 31-bit pseudo-random number for each pair of blocks, the same on every machine."""
    return _mix_bits(_mix_bits(_mix_bits(torch.full_like(query, layer)) + query) + key)


def _mix_bits(x: Tensor) -> Tensor:
    """A bijection of 31-bit integers; no product exceeds 64 bits. Source: Wellons 2018 (lowbias32)."""
    x = (x + 0x1E3779B9) & 0x7FFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0x7FFFFFFF
    x = ((x ^ (x >> 15)) * 0x046CA68B) & 0x7FFFFFFF
    return x ^ (x >> 16)


SparsityPattern = SlidingWindow | LocalBlocks | BigBird
"""Which positions attend to which, without causality.

`dense_length` is the longest sequence in which every position attends to every other, and `n_dense_blocks` the number
of leading query blocks that attend to all keys. Masks of blocks are (queries, keys), True where any query of a block
attends to any key of another; masks of positions broadcast the positions of queries and keys, all
below `n_positions`.
"""


def build_pattern(config: ModelConfig, layer: int, *, is_causal: bool) -> SparsityPattern | None:
    """Build the sparsity pattern of a layer's self-attention, counted from 0 in its stack; None for full attention.

    Compressed attention alternates with local attention, which comes first.
    """
    if config.attention == "window":
        size = config.attention_window
        return SlidingWindow(size - 1 if is_causal else size)
    if config.attention == "bigbird":
        return BigBird(
            config.attention_block, config.global_blocks, config.random_blocks, layer=layer, is_causal=is_causal
        )
    if config.attention == "compressed" and not config.has_compressed_attention(layer):
        return LocalBlocks(config.attention_block)
    return None


class BlockSparseAttention(MultiHeadAttention):
    """Self-attention with a sparsity pattern: block by block for long sequences, otherwise with a mask of all pairs."""

    def __init__(self, config: ModelConfig, pattern: SparsityPattern, *, layer: int = 0) -> None:
        super().__init__(config, layer=layer)
        self.pattern = pattern

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:
        """Return the number of query-key pairs in connected blocks; a causal block and itself count half."""
        starts = torch.arange(0, length, self.pattern.block_size)
        sizes = (length - starts).clamp(max=self.pattern.block_size).double()
        connected = self.pattern.build_block_mask(len(sizes)).double()
        if is_causal:
            connected = connected.tril() - torch.eye(len(sizes)) / 2
        return float(sizes @ connected @ sizes)

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        length, pattern, mask = query.shape[2], self.pattern, inputs.mask
        is_long = 2 * pattern.dense_length < length == key.shape[2] and inputs.query_positions is None
        if is_long and (query.device.type == "cpu" or length > _MASKED_ON_GPU):
            table = key_block_table(pattern, -(-length // pattern.block_size), is_causal=mask.is_causal)
            if 2 * table.shape[1] * pattern.block_size <= length:
                return attend_by_blocks(query, key, value, pattern, mask=mask, dropout=self.active_dropout)
        mask = self.mask(query, inputs)
        if isinstance(pattern, SlidingWindow) and mask.visible is not None and inputs.query_positions is None:
            first = max(0, inputs.start - pattern.max_distance)  # no query sees earlier keys
            key, value, mask = key[:, :, first:], value[:, :, first:], replace(mask, visible=mask.visible[..., first:])
        return attend(query, key, value, mask=mask, dropout=self.active_dropout)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        length, mask = query.shape[2], inputs.mask
        if (end := inputs.start + length) <= self.pattern.dense_length:
            return mask
        distances = inputs.compute_distances(length, query.device)
        queries = inputs.compute_query_positions(length, query.device)[..., None]
        pairs = self.pattern.build_token_mask(queries, queries + distances, end)
        if mask.is_causal:
            pairs = pairs & (distances <= 0)
        return replace(mask, is_causal=False, visible=pairs[:, None])


def attend_by_blocks(
    query: Tensor, key: Tensor, value: Tensor, pattern: SparsityPattern, *, mask: Mask, dropout: float = 0.0
) -> Tensor:
    """Attend in time and memory linear in the length of a sequence.

    Args:
        query: (batch, heads, length, head).
        key: (batch, kv_heads, length, head).
        value: like `key`.
        mask: causality and key lengths.

    Returns:
        (batch, heads, length, head).

    Source: Zaheer et al. 2020, appendix D (blocks are gathered, and multiplied as dense matrices).
    """
    length, block = query.shape[2], pattern.block_size
    query, key, value = (F.pad(x, (0, 0, 0, -length % block)).unflatten(2, (-1, block)) for x in (query, key, value))
    batch, heads, n_blocks, _, head = query.shape
    table = key_block_table(pattern, n_blocks, is_causal=mask.is_causal).to(query.device)
    blocks, offsets = (torch.arange(n, device=table.device) for n in (n_blocks, block))
    groups = [(slice(pattern.n_dense_blocks, None), table[pattern.n_dense_blocks :])]
    if pattern.n_dense_blocks:
        groups = [(slice(pattern.n_dense_blocks), blocks.expand(pattern.n_dense_blocks, -1)), *groups]
    outputs = []
    for rows, key_blocks in groups:
        queries = (blocks[rows, None] * block + offsets)[..., None]
        keys = (key_blocks.clamp(min=0)[..., None] * block + offsets).flatten(1)[:, None]
        exists = (key_blocks >= 0).repeat_interleave(block, 1)[:, None]
        pairs = pattern.build_token_mask(queries, keys, n_blocks * block) & exists
        pairs = (pairs & (keys <= queries if mask.is_causal else keys < length))[None]
        if mask.key_lengths is not None:
            pairs = pairs & (keys < mask.key_lengths[:, None, None, None])
        output = attend(  # each block of queries is a row of the batch
            query[:, :, rows].transpose(1, 2).flatten(0, 1), *(_gather_blocks(x, key_blocks) for x in (key, value)),
            mask=Mask(visible=pairs.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]), dropout=dropout,
        )  # fmt: skip
        outputs.append(output.view(batch, -1, heads, block, head).transpose(1, 2).flatten(2, 3))
    return torch.cat(outputs, dim=2)[:, :, :length]


def _gather_blocks(x: Tensor, key_blocks: Tensor) -> Tensor:
    """(batch, heads, blocks, block, head) -> (batch · rows, heads, most · block, head): the key blocks of each row."""
    rows, most = key_blocks.shape
    gathered = x.index_select(2, key_blocks.clamp(min=0).flatten()).unflatten(2, (rows, most))
    return gathered.transpose(1, 2).flatten(3, 4).flatten(0, 1)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the results outlive an evaluation, and training uses them
def _block_mask(pattern: SparsityPattern, n_blocks: int) -> Tensor:
    return pattern.build_block_mask(n_blocks)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the results outlive an evaluation, and training uses them
def key_block_table(pattern: SparsityPattern, n_blocks: int, *, is_causal: bool) -> Tensor:
    """Return the key blocks that each query block attends to.

    Returns:
        (n_blocks, most) indices in order, -1 after the last; `most` is that of blocks that are not dense. Of dense
        blocks only the first are listed.
    """
    connected = pattern.build_block_mask(n_blocks)
    if is_causal:
        connected = connected.tril()
    most = int(connected[pattern.n_dense_blocks :].sum(1).amax())
    ranked = torch.where(connected, torch.arange(n_blocks), n_blocks).sort(dim=1).values[:, :most]
    return torch.where(ranked == n_blocks, -1, ranked)
