"""Attention: what each position sees, the keys and values that are kept of earlier ones, the layers and their kernels.

A mask is a description. A tensor is made only for a kernel that cannot do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.kernels.blockwise_attention import blockwise_causal_attention, is_blockwise_faster
from lm.model.layers import Linear, RMSNorm, output_std
from lm.model.layers import dropout as dropped_out
from lm.model.module import Module, count_macs

_LONGEST_FOR_PRODUCTS = 512
"""Keys up to which two products beat torch's fused kernel forward and backward in bfloat16."""
_MANY_HEADS, _FEW_QUERIES, _FEW_KEYS = 64, 16, 64
"""Heads of all rows from which, and queries and keys up to which, they beat it forward in float32."""
_FEWEST_KEYS = 16
"""Keys that a softmax on a CPU is given at least; see `_pad_keys`."""
_VECTOR = 32
"""Numbers in bfloat16 that fill a vector of 512 bits; see `_matmul_attention`."""


class SparsityPattern(Protocol):
    """Which keys each query sees, besides what makes it causal; it can be compared and hashed."""

    @property
    def block_size(self) -> int:
        """Positions of a block."""

    @property
    def dense_length(self) -> int:
        """The length up to which all see all."""

    @property
    def n_dense_blocks(self) -> int:
        """Blocks at the beginning whose queries see every key."""

    def max_key_blocks(self, *, is_causal: bool) -> int:
        """How many blocks any other sees at most."""

    def build_block_mask(self, n_blocks: int) -> Tensor:
        """(n_blocks, n_blocks) booleans: whether any query of a block sees any key of another."""

    def build_token_mask(self, queries: Tensor, keys: Tensor, *, within: int) -> Tensor:
        """Whether the queries at some positions see the keys at others, all of them less than `within`; broadcast."""

    def first_visible(self, query: int) -> int:
        """The first position that this query or a later one sees."""


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see. The parts restrict each other; with none, every query sees every key.

    Queries are the last positions of the keys: with n_queries < n_keys (a cache), query i stands at position
    n_keys - n_queries + i.

    Attributes:
        is_causal: a query sees its own position and earlier ones.
        key_lengths: (batch,) how many keys of each row are real; the rest is padding.
        pattern: which positions see which, where not all do.
        visible: True where a query sees a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    pattern: SparsityPattern | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def causal(cls, *, pattern: SparsityPattern | None = None, bias: Tensor | None = None) -> Mask:
        """Each position sees itself and what came before, of which a pattern may leave some out."""
        return cls(is_causal=True, pattern=pattern, bias=bias)

    @classmethod
    def keys(cls, lengths: Tensor | None) -> Mask:
        """Each position sees the first `lengths[row]` keys of its row; all of them if there are no lengths."""
        return cls(key_lengths=lengths)

    def with_bias(self, bias: Tensor) -> Mask:
        """This mask, with a bias more; it is broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def with_pattern(self, pattern: SparsityPattern) -> Mask:
        """This mask, restricted to a pattern."""
        return replace(self, pattern=pattern)

    def needs_no_tensor(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or nothing at all, says everything that this mask says."""
        if self.key_lengths is not None or self.visible is not None or self.bias is not None:
            return False
        if self.pattern is not None and n_keys > self.pattern.dense_length:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def build_tensor(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, n_queries, n_keys) booleans, True where a query sees a key; None where all see all."""
        allowed = self.visible
        if self.is_causal or self.pattern is not None:
            by_position = self._build_by_position(n_queries, n_keys, device)
            allowed = by_position if allowed is None else allowed & by_position
        if self.key_lengths is not None:
            real = (torch.arange(n_keys, device=device) < self.key_lengths[:, None])[:, None, None]
            allowed = real if allowed is None else allowed & real
        return allowed

    def _build_by_position(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """(1, 1, n_queries, n_keys) booleans: what the places of queries and keys allow."""
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        keys = torch.arange(n_keys, device=device)
        if self.pattern is None:
            return (queries >= keys)[None, None]
        seen = self.pattern.build_token_mask(queries, keys, within=n_keys)
        return (seen & (queries >= keys) if self.is_causal else seen)[None, None]


def padding_bias(lengths: Tensor, longest: int) -> Tensor:
    """(rows, longest): -inf where a row of so many positions has ended, else zero; float32."""
    is_padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.zeros(is_padding.shape, device=lengths.device).masked_fill_(is_padding, -torch.inf)


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


class LayerKVCache:
    """Keys and values of the positions that one attention layer has read so far, in buffers that grow by doubling."""

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (batch, kv_heads, n, head) keys and values, and return all keys and values so far."""
        start, self.length = self.length, self.length + key.shape[2]
        if self._key is None or self._value is None:  # without room: a memory never grows
            self._key, self._value = key.contiguous(), value.contiguous()
            return self._key, self._value
        self._key = _grow(self._key, key, start, self.length)
        self._value = _grow(self._value, value, start, self.length)
        self._key[:, :, start : self.length] = key
        self._value[:, :, start : self.length] = value
        return self.keys_and_values()

    def reserve(self, positions: int) -> None:
        """Make room for so many positions more, and count them: somebody else writes them into the `buffers`."""
        start, self.length = self.length, self.length + positions
        key, value = self.buffers()
        if key.shape[2] < self.length:
            self._key, self._value = (_grow(buffer, buffer, start, self.length) for buffer in (key, value))

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with the room that they have, (batch, kv_heads, room, head) each."""
        assert self._key is not None
        assert self._value is not None
        return self._key, self._value

    def move_to(self, key: Tensor, value: Tensor) -> None:
        """Go on in other buffers, (batch, kv_heads, room, head) each, which are zero beyond what is here."""
        for buffer, held in zip((key, value), self.keys_and_values(), strict=True):
            buffer[:, :, : self.length] = held
            buffer[:, :, self.length :] = 0.0
        self._key, self._value = key, value

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Keys and values so far, (batch, kv_heads, length, head) each."""
        key, value = self.buffers()
        return key[:, :, : self.length], value[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, rows)
            self._value = self._value.index_select(0, rows)

    def select(self, positions: Tensor) -> None:
        """Keep only these positions of each row, in this order; `positions` is (batch, kept)."""
        if self._key is not None and self._value is not None:
            batch, heads, room, head = self._key.shape
            first = torch.arange(0, batch * heads * room, room, device=positions.device).view(batch, heads, 1)
            places = (first + positions[:, None]).flatten()
            self.length = positions.shape[1]
            for buffer in (self._key, self._value):
                kept = buffer.view(-1, head).index_select(0, places)
                buffer[:, :, : self.length] = kept.view(batch, heads, -1, head)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on."""
        self.length = min(self.length, length)


def _grow(buffer: Tensor, template: Tensor, n_used: int, length: int) -> Tensor:
    """A buffer for `length` positions or more that holds the first `n_used` positions of the old one."""
    if buffer.shape[2] >= length:
        return buffer
    batch, heads, _, head = template.shape
    grown = template.new_empty(batch, heads, max(length, 2 * n_used, 64), head)
    grown[:, :, :n_used] = buffer[:, :, :n_used]
    return grown


class DecoderCache:
    """What the layers of a decoder remember from step to step.

    Attributes:
        self_attention: the cache of each layer for the positions decoded so far.
        cross_attention: the cache of each layer for the encoder output, filled once.
    """

    def __init__(self, own: Sequence[LayerKVCache]) -> None:
        self.self_attention = own
        self.cross_attention = [LayerKVCache() for _ in own]

    @property
    def length(self) -> int:
        """Positions fed so far."""
        return self.self_attention[0].length

    def reorder(self, rows: Tensor, *, same_sources: bool = False) -> None:
        """Row i becomes what row `rows[i]` was, in every layer; with `same_sources` its memory is that row's."""
        for layer in self.self_attention if same_sources else (*self.self_attention, *self.cross_attention):
            layer.reorder(rows)

    def select(self, positions: Tensor) -> None:
        """Keep only some of its own positions of each row, (batch, kept), in every layer; the memory stays."""
        for layer in self.self_attention:
            layer.select(positions)

    def truncate(self, length: int) -> None:
        """Forget its own positions from `length` on; the memory stays."""
        for layer in self.self_attention:
            layer.truncate(length)


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


def _view_heads(projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
    """(batch, length, sum(heads)·head) -> views (batch, heads[i], length, head)."""
    return projected.unflatten(-1, (sum(heads), -1)).transpose(1, 2).split(heads, dim=1)


class _SplitHeads(torch.autograd.Function):
    """Contiguous copies of what `_view_heads` gives, faster to multiply; their gradients go into one tensor at once."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:  # noqa: ANN401 (torch's own)
        ctx.heads = heads
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in _view_heads(projected, heads))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        batch, _, length, head = gradients[0].shape
        of_projected = gradients[0].new_empty(batch, length, sum(ctx.heads) * head)
        for part, gradient in zip(_view_heads(of_projected, ctx.heads), gradients, strict=True):
            part.copy_(gradient)
        return of_projected, None


class Attention(Module):
    """Attention of a layer, whose weights can be computed for looking at."""

    def weights(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """What each position of `x`, (batch, length, d_model), weighs those of its keys by, without dropout.

        Returns:
            (batch, heads, queries, positions) float32.
        """
        raise NotImplementedError


class MultiHeadAttention(Attention):
    """Attention of several heads, from `x` to itself or to a memory.

    One matrix holds the projections to queries, keys and values, in this order; cross-attention uses the first part
    on `x` and the rest on the memory.
    """

    part = "attention"
    parts: ClassVar = {"value_shares": "learned shares"}

    def __init__(self, config: ModelConfig, *, layer: int = 0, value_residual: bool = False) -> None:
        """Attention of a layer, counted from 0 in its stack, which tells it its cache."""
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_size = config.n_heads, config.n_kv_heads, config.d_head
        self.dropout = config.attention_dropout
        projected = [heads * self.head_size for heads in (self.heads, self.kv_heads, self.kv_heads)]
        self.input = Linear(
            config.d_model, sum(projected), bias=config.attention_bias != "none", std=config.init_std,
            projected=projected,
        )  # fmt: skip
        self.output = Linear(projected[0], config.d_model, bias=config.attention_bias == "all", std=output_std(config))
        self.query_norm = RMSNorm(self.head_size, config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(self.head_size, config.norm_eps) if config.qk_norm else None
        self.value_shares = nn.Parameter(torch.empty(2)) if value_residual else None

    def initialise(self) -> None:
        """Start with equal shares of both values. Source: Zhou et al. 2024."""
        if self.value_shares is not None:
            nn.init.constant_(self.value_shares, 0.5)

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:
        """How many pairs of a query and a key meet in a sequence, of which causal attention sees half."""
        return length * length / 2 if is_causal else float(length * length)

    def cached_values_per_position(self) -> Fraction:
        """How many numbers a cache holds for each position."""
        return Fraction(2 * self.kv_heads * self.head_size)

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attend from each position of `x` to what `inputs` lets it see.

        Args:
            x: (batch, length, d_model).
            inputs: the encoder output to attend to instead of `x`, the mask, positions and caches.

        Returns:
            (batch, length, d_model).

        Source: Vaswani et al. 2017, section 3.2.2.
        """
        attended = self.attend_heads(*self.project_qkv(x, inputs), inputs)
        return self.output(attended.transpose(1, 2).flatten(2))

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        """What (batch, heads, length, head) queries find in the values: as many."""
        relative = inputs.relative_embeddings_of(self.layer)
        return attend(query, key, value, mask=self.mask(query, inputs), dropout=self.active_dropout, relative=relative)

    @property
    def active_dropout(self) -> float:
        """The share of attention weights that is dropped now."""
        return self.dropout if self.training else 0.0

    def new_cache(self) -> LayerKVCache:
        """What this layer remembers of earlier positions: nothing yet."""
        return LayerKVCache()

    def weights(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weights`; self-attention has to be called without a cache, which would be extended twice."""
        assert inputs.encoder_output is not None or inputs.caches is None, "a cache would be extended twice"
        query, key, _ = self.project_qkv(x, replace(inputs, first_layer_values=None))
        found = compute_attention_weights(query, key, mask=self.mask(query, inputs))
        return found if inputs.encoder_output is not None else self.weights_by_position(found, x.shape[1])

    def weights_by_position(self, weights: Tensor, length: int) -> Tensor:  # noqa: ARG002 (it matters where keys are fewer)
        """Weights of keys, (batch, heads, queries, keys), as those of the `length` positions that they come from."""
        return weights

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, length, head) of `x`, and all the keys and values that they may meet."""
        cache = inputs.layer_cache(self.layer)
        if inputs.encoder_output is not None:
            return self._project_cross(x, inputs.encoder_output, cache)
        query, key, value = self._project_self(x)
        if inputs.rotation is not None:
            query, key = inputs.rotation(query), inputs.rotation(key)
        if inputs.first_layer_values is not None and self.value_shares is not None:
            value = inputs.first_layer_values.mix(value, self.value_shares)
        if cache is not None:
            key, value = cache.extend(key, value)
        return query, key, value

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        """Which keys each query may see, and what is added to its scores, by their distances among others."""
        relative = inputs.relative_embeddings_of(self.layer)
        return inputs.mask if relative is None else inputs.mask.with_bias(relative.scores(query))

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self._split(self.input(x), (self.heads, self.kv_heads, self.kv_heads))
        return self._normalise(self.query_norm, query), self._normalise(self.key_norm, key), value

    def _project_cross(self, x: Tensor, memory: Tensor, cache: LayerKVCache | None) -> tuple[Tensor, Tensor, Tensor]:
        width = self.heads * self.head_size
        of_query = self.input.forward_slice(x, slice(0, width))
        query = self._normalise(self.query_norm, *self._split(of_query, (self.heads,)))
        if cache is not None and cache.length:
            return query, *cache.keys_and_values()
        of_memory = self.input.forward_slice(memory, slice(width, None))
        key, value = self._split(of_memory, (self.kv_heads, self.kv_heads))
        key = self._normalise(self.key_norm, key)
        return query, *(cache.extend(key, value) if cache is not None else (key, value))

    def _split(self, projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        """(batch, length, sum(heads)·head) -> one (batch, heads[i], length, head) each."""
        if projected.requires_grad:
            return _SplitHeads.apply(projected, heads)  # type: ignore[no-untyped-call]
        return _view_heads(projected, heads)

    @staticmethod
    def _normalise(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
        """Normalise in the dtype of `x`, which a GPU's autocast would leave for float32."""
        if norm is None:
            return x
        return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps).to(x.dtype)


class CrossAttention(MultiHeadAttention):
    """Attention from each position of a target to a memory, which is projected once whatever the target's length."""

    part = "cross-attention"

    def macs_per_position(self) -> float:
        """The weights that a position of the target is multiplied by: queries, outputs and all adapters."""
        return super().macs_per_position() - self.macs_per_source_position()

    def macs_per_source_position(self) -> float:
        """The weights that a position of the memory is multiplied by: those of keys and values."""
        return count_macs(self.input.weight) * 2 * self.kv_heads / (self.heads + 2 * self.kv_heads)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask,
    dropout: float = 0.0,
    relative: RelativeEmbeddings | None = None,
) -> Tensor:
    """Scaled dot-product attention with grouped key/value heads; a query that sees nothing gets zeros.

    Args:
        query: (batch, heads, queries, head).
        key: (batch, kv_heads, keys, head), where kv_heads divides heads.
        value: like `key`.
        mask: which keys each query may see.
        dropout: share of the attention weights to drop.
        relative: what is added to the values by their distance; what is added to the keys is in the mask's bias.

    Returns:
        (batch, heads, queries, head).

    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023.
    """
    n_queries, n_keys = query.shape[2], key.shape[2]
    if relative is not None or _matmuls_are_faster(query, n_keys, dropout, mask.bias):
        return _matmul_attention(query, key, value, mask, dropout, relative)
    grouped = query.shape[1] != key.shape[1]
    if mask.needs_no_tensor(n_queries, n_keys):
        flag = mask.is_causal and n_queries > 1
        if flag and not dropout and is_blockwise_faster(query, n_keys):
            return blockwise_causal_attention(query, key, value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=flag, dropout_p=dropout, enable_gqa=grouped)
    scores_mask = mask.build_tensor(n_queries, n_keys, query.device)
    if mask.bias is not None:
        bias = mask.bias.to(query.dtype)
        scores_mask = bias if scores_mask is None else bias.masked_fill(~scores_mask, -torch.inf)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=scores_mask, dropout_p=dropout, enable_gqa=grouped
    )


def _matmuls_are_faster(query: Tensor, n_keys: int, dropout: float, bias: Tensor | None) -> bool:
    """Whether attention written out as two products is faster than torch's fused kernel, as it often is on a CPU.

    There the fused kernel has neither dropout nor the gradient of a bias, and its backward pass in bfloat16 is slow.
    Forward and backward at 8 rows, 6 heads, 256 positions, head 64, bfloat16, 2 threads: fused 27 ms, products 14 ms;
    they cross between 512 and 1024 positions. In float32 the fused kernel wins at every length, but not forward where
    many rows have a few queries and keys each: 5 queries and 24 keys take it 3.1 µs a head, products 1.4 µs.
    """
    if query.device.type != "cpu":
        return False
    batch, heads, n_queries, _ = query.shape
    backward = query.requires_grad and query.dtype is torch.bfloat16
    tiny = query.dtype is torch.float32 and not query.requires_grad and batch * heads >= _MANY_HEADS
    return (
        dropout > 0
        or (bias is not None and bias.requires_grad)
        or (backward and n_keys <= _LONGEST_FOR_PRODUCTS)
        or (tiny and n_queries <= _FEW_QUERIES and n_keys <= _FEW_KEYS)
    )


def _matmul_attention(  # noqa: PLR0917 (as `attend` has them)
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, relative: RelativeEmbeddings | None = None
) -> Tensor:
    """Attention written out: softmax(query keyᵀ / √head) value, with one key/value head for a group of query heads.

    torch's softmax of bfloat16 works in float32 inside, which saves two passes over the scores each way; but on rows
    that don't fill its vectors it takes two to five times as long as casting them.
    """
    batch, heads, n_queries, head = query.shape
    kv_heads, n_keys = key.shape[1:3]
    groups = heads // kv_heads
    with torch.autocast(query.device.type, enabled=False):
        scores = (query * head**-0.5).reshape(batch, kv_heads, groups * n_queries, head) @ key.transpose(-1, -2)
        scores = scores.view(batch, heads, n_queries, n_keys)
        if n_keys % _VECTOR or mask.bias is not None:
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask.bias is not None:
            scores = scores + mask.bias.to(scores.dtype)
        allowed = mask.build_tensor(n_queries, n_keys, scores.device)
        if n_keys < _FEWEST_KEYS:
            scores, value, allowed = _pad_keys(scores, value, allowed)
        weights = dropped_out(_masked_softmax(scores, allowed).to(query.dtype), dropout)
        output = (weights.view(batch, kv_heads, groups * n_queries, -1) @ value).view(batch, heads, n_queries, head)
        return output if relative is None else output + relative.output(weights[..., :n_keys])


def _pad_keys(scores: Tensor, value: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Add keys that no query sees until there are 16: a softmax over 16 takes a tenth of the time of one over 15."""
    added = _FEWEST_KEYS - scores.shape[-1]
    if allowed is None:
        allowed = torch.ones(1, 1, 1, scores.shape[-1], dtype=torch.bool, device=scores.device)
    return F.pad(scores, (0, added)), F.pad(value, (0, 0, 0, added)), F.pad(allowed, (0, added))


def _masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the allowed keys; all zeros, not NaN, where none is."""
    if allowed is None:
        return scores.softmax(-1)
    floor = scores.new_zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(scores.dtype).min)
    weights = (scores + floor).softmax(-1)
    sees_nothing = ~allowed.any(-1, keepdim=True)
    if weights.device.type != "cpu" or torch.compiler.is_compiling() or bool(sees_nothing.any()):  # a GPU isn't asked
        weights = weights.masked_fill(sees_nothing, 0.0)
    return weights


def compute_attention_weights(query: Tensor, key: Tensor, *, mask: Mask) -> Tensor:
    """What `attend` weighs the values by, without dropout.

    Args:
        query: (batch, heads, queries, head).
        key: (batch, kv_heads, keys, head), where kv_heads divides heads.
        mask: which keys each query may see.

    Returns:
        (batch, heads, queries, keys) float32. Rows sum to one; a row that may see nothing is all zeros.
    """
    groups = query.shape[1] // key.shape[1]
    with torch.autocast(query.device.type, enabled=False):
        scores = query.float() @ key.float().repeat_interleave(groups, dim=1).transpose(-1, -2)
    scores = scores * query.shape[-1] ** -0.5
    if mask.bias is not None:
        scores = scores + mask.bias.float()
    allowed = mask.build_tensor(query.shape[2], key.shape[2], query.device)
    if allowed is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@contextmanager
def capture_attention_weights(attentions: Iterable[Attention]) -> Iterator[list[Tensor]]:
    """The weights of some attention layers while the model runs inside the `with`.

    Args:
        attentions: for instance `model.decoder.attentions(cross=True)`.

    Yields:
        A list that grows by (batch, heads, queries, keys) float32 whenever one of the layers is called: after one
        run of a model it holds the layers in order. Layers of self-attention have to be called without a cache.
    """
    weights: list[Tensor] = []

    def note(attention: nn.Module, inputs: tuple[Tensor, AttentionInputs]) -> None:
        assert isinstance(attention, Attention)
        with torch.no_grad():
            weights.append(attention.weights(*inputs))

    hooks = [attention.register_forward_pre_hook(note) for attention in attentions]
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()
