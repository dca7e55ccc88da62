"""Block-sparse attention: sliding windows, local blocks and BigBird, computed block by block where that is faster.

Positions are cut into blocks, and a pattern says which blocks attend to which, so that a kernel can skip the others.
The pattern of two positions doesn't depend on the sequence length: cached and padded sequences give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lm.config.model import ModelConfig
from lm.model.attention import MultiHeadAttention, attend
from lm.model.attention_inputs import AttentionInputs, DistanceBias, RelativeEmbeddings
from lm.model.mask import Mask, SparsityPattern
from lm.model.module import memoised


class BlockSparseAttention(MultiHeadAttention):
    """Self-attention with a sparsity pattern.

    The block-wise kernel serves whole sequences. With a KV cache the queries are few, and keys before all visible ones
    are skipped.
    """

    def __init__(self, config: ModelConfig, pattern: SparsityPattern, *, layer: int = 0) -> None:
        super().__init__(config, layer=layer, value_residual=config.value_residual)
        self.pattern = pattern

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:
        """Return the number of query-key pairs in connected blocks."""
        return count_pattern_pairs(self.pattern, length, is_causal=is_causal)

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        length, is_causal = query.shape[2], inputs.mask.is_causal
        in_line = length == key.shape[2] and inputs.query_positions is None and inputs.mask.bias is None
        is_long = query.device.type == "cpu" or length > _MASKED_ON_GPU
        if in_line and is_long and is_sparse_enough(self.pattern, length, is_causal=is_causal):
            blocks = BlockSparseKernel(self.pattern, inputs.mask, inputs.distance_bias, self.layer, self.active_dropout)
            return blocks(query, key, value)
        first = self.pattern.first_visible(inputs.start) if inputs.key_positions is None else 0
        mask, relative = self._build_mask(query, inputs, first=first)
        key, value = key[:, :, first:], value[:, :, first:]
        return attend(query, key, value, mask=mask, dropout=self.active_dropout, relative=relative)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        return self._build_mask(query, inputs, first=0)[0]

    def _build_mask(
        self, query: Tensor, inputs: AttentionInputs, *, first: int
    ) -> tuple[Mask, RelativeEmbeddings | None]:
        """The mask for keys from `first` on, and the relative embeddings of the values."""
        length = query.shape[2]
        end = inputs.start + length if inputs.query_positions is None else inputs.end
        if inputs.distance_bias is None and inputs.key_positions is None and length == end - first:
            return inputs.mask.with_pattern(self.pattern), None
        distances = inputs.compute_distances(length, query.device)[..., first:]
        queries = inputs.compute_query_positions(length, query.device)[..., None]
        pairs = self.pattern.build_token_mask(queries, queries + distances, n_positions=end)
        if inputs.mask.is_causal:
            pairs = pairs & (distances <= 0)
        if inputs.mask.key_lengths is not None:
            pairs = pairs & (queries + distances < inputs.mask.key_lengths[:, None, None])
        mask = Mask(visible=pairs[:, None], bias=inputs.mask.bias)
        if inputs.distance_bias is None:
            return mask, None
        bias, relative = inputs.distance_bias.compute_bias(query, distances, layer=self.layer)
        return mask.with_bias(bias), relative


_MASKED_ON_GPU = 4096
"""Positions up to which a GPU computes all pairs of a sequence and masks most, faster than it gathers blocks."""
_SAVED_ON_CPU, _SAVED_ON_GPU = 1 << 22, 1 << 28
"""Numbers saved for the backward pass; beyond that it recomputes chunk by chunk."""


def is_sparse_enough(pattern: SparsityPattern, length: int, *, is_causal: bool) -> bool:
    """Whether a query then sees at most half of the keys of a sequence."""
    if length <= 2 * pattern.dense_length:
        return False
    return 2 * pattern.max_key_blocks(is_causal=is_causal) * pattern.block_size <= length


@dataclass(frozen=True)
class BlockSparseKernel:
    """Block-sparse attention of a sequence to itself, in time and memory linear in its length.

    Attributes:
        mask: causality and key lengths.
        distance_bias: computes biases of relative positions, if any.

    Source: Zaheer et al. 2020, appendix D (blocks are gathered, and multiplied as dense matrices).
    """

    pattern: SparsityPattern
    mask: Mask
    distance_bias: DistanceBias | None = None
    layer: int = 0
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with (batch, heads, length, head) queries to (batch, kv_heads, length, head) keys and values."""
        length, block = query.shape[2], self.pattern.block_size
        padding = (0, 0, 0, -length % block)
        query, key, value = (F.pad(x, padding).unflatten(2, (-1, block)) for x in (query, key, value))
        table = key_block_table(self.pattern, query.shape[2], is_causal=self.mask.is_causal).to(query.device)

        def attend_chunk(first: int, end: int) -> Tensor:
            sees_all = first < self.pattern.n_dense_blocks
            key_blocks = torch.arange(len(table), device=table.device).expand(end, -1) if sees_all else table[:end]
            return self._attend_blocks(
                query[:, :, first:end], key, value, key_blocks[first:], first=first, length=length
            )

        return compute_in_chunks(attend_chunk, self._query_chunks(query, key, table), is_random=self.dropout > 0)[
            :, :, :length
        ]

    def _query_chunks(self, query: Tensor, key: Tensor, table: Tensor) -> list[tuple[int, int]]:
        """Query blocks to compute together; dense blocks are apart."""
        batch, heads, blocks, block, head = query.shape
        numbers = batch * block * table.shape[1] * (2 * key.shape[1] * head + heads * block)
        everywhere = min(self.pattern.n_dense_blocks, blocks)
        first = [(0, everywhere)] if everywhere else []
        max_saved = _SAVED_ON_CPU if query.device.type == "cpu" else _SAVED_ON_GPU
        return first + split_evenly(blocks, numbers, max_cost=max_saved, start=everywhere)

    def _attend_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, key_blocks: Tensor, *, first: int, length: int
    ) -> Tensor:
        """Attend from some query blocks to the (blocks, most) key blocks of each: (batch, heads, positions, head).

        For `attend`, each block is a row of the batch.
        """
        batch, heads, blocks, block, head = query.shape
        query = query.transpose(1, 2).flatten(0, 1)
        offsets = torch.arange(block, device=key_blocks.device)
        queries = ((first + torch.arange(blocks, device=key_blocks.device))[:, None] * block + offsets)[..., None]
        keys = (key_blocks.clamp(min=0)[..., None] * block + offsets).flatten(1)[:, None]
        bias, relative = None, None
        if self.distance_bias is not None:
            distances = (keys - queries).repeat(batch, 1, 1)
            bias, relative = self.distance_bias.compute_bias(query, distances, layer=self.layer)
        sees_whole_block = key_blocks.shape[1] == 1 and self.pattern.dense_length >= block
        if sees_whole_block and self.mask.is_causal and self.mask.key_lengths is None:
            mask = Mask.causal(bias=bias)
        else:
            pairs = self._visible_pairs(queries, keys, (key_blocks >= 0).repeat_interleave(block, 1)[:, None], length)
            mask = Mask(visible=pairs.expand(batch, -1, -1, -1).flatten(0, 1)[:, None], bias=bias)
        key, value = (_gather_blocks(x, key_blocks) for x in (key, value))
        output = attend(query, key, value, mask=mask, dropout=self.dropout, relative=relative)
        return output.view(batch, blocks, heads, block, head).transpose(1, 2).flatten(2, 3)

    def _visible_pairs(self, queries: Tensor, keys: Tensor, exists: Tensor, length: int) -> Tensor:
        """(batch or 1, blocks, queries, keys) booleans by pattern, causality and padding."""
        n_positions = -(-length // self.pattern.block_size) * self.pattern.block_size
        pairs = self.pattern.build_token_mask(queries, keys, n_positions=n_positions) & exists
        if self.mask.is_causal:
            pairs &= keys <= queries
        else:
            pairs &= keys < length
        if self.mask.key_lengths is None:
            return pairs[None]
        return pairs & (keys < self.mask.key_lengths[:, None, None, None])


def _gather_blocks(x: Tensor, key_blocks: Tensor) -> Tensor:
    """(batch, heads, blocks, block, head) -> (batch · rows, heads, most · block, head): the key blocks of each row."""
    batch, heads, _, block, head = x.shape
    rows, max_blocks = key_blocks.shape
    gathered = x.index_select(2, key_blocks.clamp(min=0).flatten()).view(batch, heads, rows, max_blocks * block, head)
    return gathered.transpose(1, 2).reshape(batch * rows, heads, max_blocks * block, head)


_LARGEST_BLOCK = 64
"""The largest block of a window: larger ones gather less, but compute more masked pairs."""


@dataclass(frozen=True)
class SlidingWindow:
    """A sliding window: each position attends to those at most `max_distance` away.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """

    max_distance: int
    n_dense_blocks: int = 0

    @property
    def block_size(self) -> int:
        """The window's reach, rounded down to a power of two, within limits."""
        return min(_LARGEST_BLOCK, 1 << max(4, self.max_distance.bit_length() - 1))

    @property
    def dense_length(self) -> int:
        """The reach of the first position."""
        return self.max_distance + 1

    def max_key_blocks(self, *, is_causal: bool) -> int:
        """Its own, and those that the window reaches on either side."""
        return 1 + (1 if is_causal else 2) * -(-self.max_distance // self.block_size)

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """Blocks whose nearest positions are within reach."""
        blocks = torch.arange(n_blocks)
        return ((blocks[:, None] - blocks).abs() - 1) * self.block_size < self.max_distance

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, n_positions: int) -> Tensor:  # noqa: ARG002 (others need it)
        return (queries - keys).abs() <= self.max_distance

    def first_visible(self, query: int) -> int:
        """The far end of the window."""
        return max(0, query - self.max_distance)


@dataclass(frozen=True)
class LocalBlocks:
    """Local attention: each position attends to its own block.

    Source: Liu et al. 2018, section 4.2.2 (local attention).
    """

    block_size: int
    n_dense_blocks: int = 0

    @property
    def dense_length(self) -> int:
        return self.block_size

    def max_key_blocks(self, *, is_causal: bool) -> int:  # noqa: ARG002
        return 1

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """The diagonal."""
        return torch.eye(n_blocks, dtype=torch.bool)

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, n_positions: int) -> Tensor:  # noqa: ARG002
        return queries // self.block_size == keys // self.block_size

    def first_visible(self, query: int) -> int:
        """The start of its block."""
        return query // self.block_size * self.block_size


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

    def max_key_blocks(self, *, is_causal: bool) -> int:
        """Itself, its neighbours, the global and the random blocks."""
        return (2 if is_causal else 3) + self.global_blocks + self.random_blocks

    def build_block_mask(self, n_blocks: int) -> Tensor:
        return _bigbird_block_mask(self, n_blocks)

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, n_positions: int) -> Tensor:
        return self.build_block_mask(-(-n_positions // self.block_size)).to(queries.device)[
            queries // self.block_size, keys // self.block_size
        ]

    def first_visible(self, query: int) -> int:  # noqa: ARG002
        """The first global block."""
        return 0


@memoised
def _bigbird_block_mask(pattern: BigBird, n_blocks: int) -> Tensor:
    """The block mask of BigBird; the random blocks are the candidates with the smallest hashes."""
    query, key = torch.arange(n_blocks)[:, None], torch.arange(2 * n_blocks)
    fixed = ((query - key).abs() <= 1) | (key < pattern.global_blocks)
    free = ~fixed & (key < (query if pattern.is_causal else 2 * (query + 1)))
    numbers = torch.where(free, _hash_block_pairs(pattern.layer, query, key), 1 << 31)
    random_blocks = numbers.argsort(dim=1, stable=True)[:, : pattern.random_blocks]
    connected = fixed.scatter(1, random_blocks, True) & (fixed | free)
    return (connected | (query < pattern.n_dense_blocks))[:, :n_blocks]


def _hash_block_pairs(layer: int, query: Tensor, key: Tensor) -> Tensor:
    """A 31-bit pseudo-random number for each pair of blocks, the same on every machine."""
    return _mix_bits(_mix_bits(_mix_bits(torch.full_like(query, layer)) + query) + key)


def _mix_bits(x: Tensor) -> Tensor:
    """A bijection of 31-bit integers; no product exceeds 64 bits. Source: Wellons 2018 (lowbias32)."""
    x = (x + 0x1E3779B9) & 0x7FFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0x7FFFFFFF
    x = ((x ^ (x >> 15)) * 0x046CA68B) & 0x7FFFFFFF
    return x ^ (x >> 16)


@memoised
def key_block_table(pattern: SparsityPattern, n_blocks: int, *, is_causal: bool) -> Tensor:
    """Return the key blocks that each query block attends to.

    Returns:
        (n_blocks, most) indices in order, -1 after the last; `most` is the pattern's `max_key_blocks`, or n_blocks. Of
        dense blocks only the first are listed.
    """
    connected = pattern.build_block_mask(n_blocks)
    if is_causal:
        connected = connected.tril()
    max_blocks = pattern.max_key_blocks(is_causal=is_causal)
    ranked = torch.where(connected, torch.arange(n_blocks), n_blocks).sort(dim=1).values[:, :max_blocks]
    return torch.where(ranked == n_blocks, -1, ranked)


def count_pattern_pairs(pattern: SparsityPattern, length: int, *, is_causal: bool) -> float:
    """Count the query-key pairs in connected blocks; a causal block and itself count half."""
    starts = torch.arange(-(-length // pattern.block_size)) * pattern.block_size
    sizes = (length - starts).clamp(max=pattern.block_size).double()
    connected = pattern.build_block_mask(len(sizes)).double()
    if is_causal:
        connected = connected.tril() - torch.eye(len(sizes)) / 2
    return float(sizes @ connected @ sizes)


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


def compute_in_chunks(
    compute: Callable[[int, int], Tensor], chunks: Sequence[tuple[int, int]], *, is_random: bool
) -> Tensor:
    """Compute chunks one after the other along the length, and concatenate them.

    If there are several, activations are not saved for the backward pass, which recomputes each chunk.

    Args:
        compute: returns (batch, heads, positions, head) given the first and the end position of a chunk.
        chunks: first and end of each.
        is_random: whether it draws random numbers, which must be the same again.

    Returns:
        (batch, heads, positions of all chunks, head).

    Source: Chen et al. 2016 (sublinear memory cost).
    """
    if len(chunks) == 1:
        return compute(*chunks[0])
    if not torch.is_grad_enabled():
        return torch.cat([compute(*chunk) for chunk in chunks], dim=2)
    parts = [checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=is_random) for chunk in chunks]
    return torch.cat(parts, dim=2)


def split_evenly(total: int, cost: int, *, max_cost: int, start: int = 0) -> list[tuple[int, int]]:
    """Split `start` … `total` into chunks of similar size that cost at most `max_cost`, or have one element.

    Args:
        total: end of the last chunk.
        cost: per element.
        start: start of the first chunk.
    """
    n_chunks = max(1, -(-(total - start) * cost // max_cost))
    size = max(1, -(-(total - start) // n_chunks))
    return [(first, min(first + size, total)) for first in range(start, total, size)]
