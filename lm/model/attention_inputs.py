"""What attention layers get besides hidden states: masks, KV caches of the model, positions and relative embeddings.

The KV caches of engines and decode sessions, with rows of different lengths, are in `lm.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class SparsityPattern(Protocol):
    """A block-sparse attention pattern, without causality; hashable."""

    @property
    def block_size(self) -> int:
        """Positions per block."""

    @property
    def dense_length(self) -> int:
        """The longest sequence in which every position attends to every other."""

    @property
    def n_dense_blocks(self) -> int:
        """The number of leading query blocks that attend to every key."""

    def max_key_blocks(self, *, is_causal: bool) -> int:
        """The most key blocks that any other query block attends to."""

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """Build (n_blocks, n_blocks) booleans: whether any query of a block attends to any key of another."""

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:
        """Whether queries at given positions attend to keys at given positions; the arguments broadcast.

        All positions are less than `within`.
        """

    def first_visible(self, query: int) -> int:
        """The first position that this query or a later one attends to."""


@dataclass(frozen=True)
class Mask:
    """Which keys each query may attend to. The parts restrict each other; with none, all queries attend to all keys.

    Queries are the last positions of the keys: with n_queries < n_keys (a KV cache), query i stands at position n_keys
    - n_queries + i.

    Attributes:
        is_causal: a query attends to its own position and earlier ones.
        key_lengths: (batch,) the number of real keys in each row; the rest is padding.
        pattern: a sparsity pattern.
        visible: booleans, True where a query attends to a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    pattern: SparsityPattern | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, pattern: SparsityPattern | None = None, bias: Tensor | None = None) -> Mask:
        """A causal mask, with an optional sparsity pattern and bias."""
        return cls(is_causal=True, pattern=pattern, bias=bias)

    @classmethod
    def key_padding(cls, lengths: Tensor | None) -> Mask:
        """A padding mask: each query attends to the first `lengths[row]` keys of its row, or to all without lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """Add a bias, broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def with_pattern(self, pattern: SparsityPattern) -> Mask:
        """Restrict the mask to a sparsity pattern."""
        return replace(self, pattern=pattern)

    def needs_no_tensor(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or no mask at all, expresses this mask."""
        if self.key_lengths is not None or self.visible is not None or self.bias is not None:
            return False
        if self.pattern is not None and n_keys > self.pattern.dense_length:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def build_tensor(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Build (batch or 1, 1, n_queries, n_keys) booleans, True for visible pairs; None for a full mask."""
        allowed = self.visible
        if self.is_causal or self.pattern is not None:
            by_position = self._build_by_position(n_queries, n_keys, device)
            allowed = by_position if allowed is None else allowed & by_position
        if self.key_lengths is not None:
            is_real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = is_real if allowed is None else allowed & is_real
        return allowed

    def _build_by_position(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Build the (1, 1, n_queries, n_keys) booleans of causality and pattern."""
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        keys = torch.arange(n_keys, device=device)
        if self.pattern is None:
            return (queries >= keys)[None, None]
        visible = self.pattern.build_token_mask(queries, keys, within=n_keys)
        return (visible & (queries >= keys) if self.is_causal else visible)[None, None]


def padding_bias(lengths: Tensor, longest: int) -> Tensor:
    """Build a (rows, longest) float32 bias: 0 for real positions, -inf for padding."""
    is_padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, device=lengths.device).masked_fill_(is_padding, -torch.inf)


class LayerKVCache:
    """Keys and values of one attention layer, in buffers that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (batch, kv_heads, n, head) keys and values; return all keys and values."""
        start, self.length = self.length, self.length + key.shape[2]
        if self._key is None or self._value is None:  # without spare capacity: an encoder output never grows
            self._key, self._value = key.contiguous(), value.contiguous()
            return self._key, self._value
        self._key = _grow(self._key, key, start, self.length)
        self._value = _grow(self._value, value, start, self.length)
        self._key[:, :, start : self.length] = key
        self._value[:, :, start : self.length] = value
        return self.keys_and_values()

    def reserve(self, positions: int) -> None:
        """Reserve and count positions whose keys and values the caller writes into `buffers`."""
        start, self.length = self.length, self.length + positions
        key, value = self.buffers()
        if key.shape[2] < self.length:
            self._key, self._value = (_grow(buffer, buffer, start, self.length) for buffer in (key, value))

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Return the key and value buffers, (batch, kv_heads, capacity, head) each."""
        assert self._key is not None
        assert self._value is not None
        return self._key, self._value

    def move_to(self, key: Tensor, value: Tensor) -> None:
        """Copy the contents to other (batch, kv_heads, capacity, head) buffers and use these; the rest is zeroed."""
        for buffer, used in zip((key, value), self.keys_and_values(), strict=True):
            buffer[:, :, : self.length] = used
            buffer[:, :, self.length :] = 0.0
        self._key, self._value = key, value

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values so far, (batch, kv_heads, length, head) each."""
        key, value = self.buffers()
        return key[:, :, : self.length], value[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`; rows may be repeated or left out."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, rows)
            self._value = self._value.index_select(0, rows)

    def select(self, positions: Tensor) -> None:
        """Keep only the given (batch, n) positions of each row, in this order."""
        if self._key is not None and self._value is not None:
            batch, heads, capacity, head = self._key.shape
            first = torch.arange(0, batch * heads * capacity, capacity, device=positions.device).view(batch, heads, 1)
            indices = (first + positions[:, None]).flatten()
            self.length = positions.shape[1]
            for buffer in (self._key, self._value):
                selected = buffer.view(-1, head).index_select(0, indices)
                buffer[:, :, : self.length] = selected.view(batch, heads, -1, head)

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on."""
        self.length = min(self.length, length)


def _grow(buffer: Tensor, template: Tensor, n_used: int, length: int) -> Tensor:
    """Return a buffer of at least `length` positions that starts with the first `n_used` positions of `buffer`."""
    if buffer.shape[2] >= length:
        return buffer
    batch, heads, _, head = template.shape
    grown = template.new_empty(batch, heads, max(length, 2 * n_used, 64), head)
    grown[:, :, :n_used] = buffer[:, :, :n_used]
    return grown


class DecoderCache:
    """The KV caches of all layers of a decoder.

    Attributes:
        self_attention: the cache of each layer for the positions decoded so far.
        cross_attention: the cache of each layer for the encoder output, filled once.
    """

    def __init__(self, own: Sequence[LayerKVCache]) -> None:
        self.self_attention = own
        self.cross_attention = [LayerKVCache() for _ in own]

    @property
    def length(self) -> int:
        """The number of positions decoded so far."""
        return self.self_attention[0].length

    def reorder(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Row i becomes the former row `rows[i]`, in every layer.

        With `same_sources`, both rows have the same source, and the cross-attention caches stay as they are.
        """
        for layer in self.self_attention if same_sources else (*self.self_attention, *self.cross_attention):
            layer.reorder(rows)

    def select(self, positions: Tensor) -> None:
        """Keep only the given (batch, n) positions of each row in the self-attention caches."""
        for layer in self.self_attention:
            layer.select(positions)

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on from the self-attention caches."""
        for layer in self.self_attention:
            layer.truncate(length)


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
            layer: index of the layer.

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
        n_branches: the number of continuations of one past that are packed into a row. Each continues at `start`,
            and the mask keeps them apart.
        end: an upper bound of `query_positions`; without it they are searched, for which a GPU must synchronise.
        query_positions: (batch, queries) positions of the queries, branches included [default: consecutive from
            `start`].
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
    n_branches: int = 1
    end: int | None = None
    query_positions: Tensor | None = None
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
        """(batch or 1, length) positions of the queries, branches included."""
        if self.query_positions is not None:
            return self.query_positions
        end = self.start + length // self.n_branches
        return torch.arange(self.start, end, device=device).repeat(self.n_branches)[None]

    def with_relative_embeddings(self, tables: Sequence[RelativeEmbeddings]) -> AttentionInputs:
        """Add relative embeddings, one for each layer, to those that are there."""
        if self.relative_embeddings is not None:
            tables = [replace(one, added=other) for one, other in zip(tables, self.relative_embeddings, strict=True)]
        return replace(self, relative_embeddings=tables)

    def compute_distances(self, length: int, device: torch.device) -> Tensor:
        """Return (batch or 1, queries, keys): the position of each key minus that of each of `length` queries."""
        end, queries = self.start + length // self.n_branches, self.compute_query_positions(length, device)
        assert self.n_branches == 1 or self.key_positions is not None, "the keys of branches are not consecutive"
        keys = torch.arange(end, device=device)[None] if self.key_positions is None else self.key_positions
        return keys[:, None, :] - queries[:, :, None]
