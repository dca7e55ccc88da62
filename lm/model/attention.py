"""Attention: masks, KV caches, the inputs of attention layers, self- and cross-attention, and the kernels.

Caches of engines and decode sessions, with rows of different lengths, are in `lm.engine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.layers import Linear, blockwise_causal_attention, output_std, uses_blocks
from lm.model.layers import dropout as apply_dropout


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
        self._key = _grow(self._key, start, self.length)
        self._value = _grow(self._value, start, self.length)
        self._key[:, :, start : self.length] = key
        self._value[:, :, start : self.length] = value
        return self.keys_and_values()

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Return the key and value buffers, (batch, kv_heads, capacity, head) each."""
        assert self._key is not None
        assert self._value is not None
        return self._key, self._value

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values so far, (batch, kv_heads, length, head) each."""
        key, value = self.buffers()
        return key[:, :, : self.length], value[:, :, : self.length]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`; rows may be repeated or left out."""
        if self._key is not None and self._value is not None:
            self._key = self._key.index_select(0, rows)
            self._value = self._value.index_select(0, rows)


def _grow(buffer: Tensor, n_used: int, length: int) -> Tensor:
    """Return a buffer of at least `length` positions that starts with the first `n_used` positions of `buffer`."""
    if buffer.shape[2] >= length:
        return buffer
    batch, heads, _, head = buffer.shape
    grown = buffer.new_empty(batch, heads, max(length, 2 * n_used, 64), head)
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

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes the former row `rows[i]`, in every layer."""
        for layer in (*self.self_attention, *self.cross_attention):
            layer.reorder(rows)


_MAX_KEYS_FOR_MATMULS = 512
"""Keys up to which two matmuls beat torch's fused kernel, forward and backward in bfloat16."""
_MIN_HEADS, _MAX_QUERIES, _MAX_KEYS = 64, 16, 64
"""Heads of all rows from which, and queries and keys up to which, two matmuls beat it forward in float32."""
_MIN_SOFTMAX_KEYS = 16
"""The fewest keys of a softmax on a CPU; see `_pad_keys`."""
_VECTOR_SIZE = 32
"""Bfloat16 numbers in a 512-bit vector; see `_matmul_attention`."""


@dataclass(frozen=True)
class Mask:
    """Which keys each query may attend to. The parts restrict each other; with none, all queries attend to all keys.

    Queries are the last positions of the keys: with n_queries < n_keys (a KV cache), query i stands at position n_keys
    - n_queries + i.

    Attributes:
        is_causal: a query attends to its own position and earlier ones.
        key_lengths: (batch,) the number of real keys in each row; the rest is padding.
        visible: booleans, True where a query attends to a key, broadcastable to (batch, 1, queries, keys).
        bias: added to the scores, broadcastable to (batch, heads, queries, keys).
    """

    is_causal: bool = False
    key_lengths: Tensor | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None

    def with_bias(self, bias: Tensor) -> Mask:
        """Add a bias, broadcastable to (batch, heads, queries, keys)."""
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def needs_no_tensor(self, n_queries: int, n_keys: int) -> bool:
        """Whether a kernel's own `is_causal` flag, or no mask at all, expresses this mask."""
        if self.key_lengths is not None or self.visible is not None or self.bias is not None:
            return False
        return not self.is_causal or n_queries in (1, n_keys)

    def build_tensor(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Build (batch or 1, 1, n_queries, n_keys) booleans, True for visible pairs; None for a full mask."""
        allowed, keys = self.visible, torch.arange(n_keys, device=device)
        if self.is_causal:
            past = (keys[n_keys - n_queries :, None] >= keys)[None, None]
            allowed = past if allowed is None else allowed & past
        if self.key_lengths is not None:
            is_real = (keys < self.key_lengths[:, None])[:, None, None]
            allowed = is_real if allowed is None else allowed & is_real
        return allowed


@dataclass(frozen=True)
class RelativeEmbeddings:
    """Learned embeddings by relative position that one layer adds to its keys and values.

    The sums are never materialised: queries are multiplied by each embedding once and the results gathered by key; the
    attention weights are summed by distance and then multiplied by the value embeddings.

    Attributes:
        rows: (batch or 1, 1, queries, keys) the table row of each query-key pair.
        keys: (kv_heads, distances, head).
        values: like `keys`.

    Source: Shaw et al. 2018, equations 3 and 4, and section 3.3.
    """

    rows: Tensor
    keys: Tensor
    values: Tensor

    def scores(self, query: Tensor) -> Tensor:
        """Return what the key embeddings add to the scores: (batch, heads, queries, keys).

        Args:
            query: (batch, heads, queries, head).
        """
        by_distance = _matmul_by_group(query * query.shape[-1] ** -0.5, self.keys.transpose(-1, -2))
        return by_distance.gather(-1, self.rows.expand(*by_distance.shape[:2], -1, -1))

    def output(self, weights: Tensor) -> Tensor:
        """Return what the value embeddings add to the output: (batch, heads, queries, head).

        Weights are summed in float32 or better: many keys share the rows of the greatest distances.

        Args:
            weights: (batch, heads, queries, keys).
        """
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        summed = exact.new_zeros(*weights.shape[:-1], self.values.shape[1])
        summed = summed.scatter_add(-1, self.rows.expand(*weights.shape[:2], -1, -1), exact)
        return _matmul_by_group(summed.to(weights.dtype), self.values)


def _matmul_by_group(x: Tensor, tables: Tensor) -> Tensor:
    """(batch, heads, queries, n) @ (kv_heads, n, m) of each head's group -> (batch, heads, queries, m)."""
    batch, heads, queries, n = x.shape
    with torch.autocast(x.device.type, enabled=False):
        grouped = x.reshape(batch, len(tables), -1, n) @ tables.to(x.dtype)
    return grouped.view(batch, heads, queries, -1)


@dataclass(frozen=True)
class AttentionInputs:
    """The mask, KV caches and positions that attention layers get besides the hidden states.

    Self-attention has one, and cross-attention another. The model sets mask, caches and positions; its stack adds the
    position scheme and the first layer's values, which all layers share.

    Attributes:
        mask: which keys each query may attend to.
        encoder_output: (batch, source length, d_model) states to attend to, in cross-attention.
        caches: for each layer a `LayerKVCache` of earlier positions, extended in place; those of an encoder output are
            computed once. Of recurrent layers one `RecurrentCache` of all.
        start: the position of the first query; keys are at 0 … start + queries - 1.
        query_positions: (batch or 1, queries) positions of the queries, at most those of the last keys, if they are
            not consecutive from `start`.
        rotation: a `Rotation` of queries and keys by position (rotary embeddings), if any.
        relative_embeddings: for each layer, those by each kind of distance.
        first_layer_values: (batch, kv_heads, length, head), once the first layer that mixes them has run.
        lengths: (batch,) real positions in each row; what follows is padding, which is not routed to experts. None if
            all are real.
    """

    mask: Mask
    encoder_output: Tensor | None = None
    caches: Sequence[Any] | None = None
    start: int = 0
    query_positions: Tensor | None = None
    rotation: Any = None
    relative_embeddings: Sequence[Sequence[RelativeEmbeddings]] = ()
    first_layer_values: list[Tensor] = field(default_factory=list)
    lengths: Tensor | None = None

    def compute_query_positions(self, length: int, device: torch.device) -> Tensor:
        """(batch or 1, length) positions of the queries."""
        if self.query_positions is not None:
            return self.query_positions
        return torch.arange(self.start, self.start + length, device=device)[None]

    def compute_distances(self, length: int, device: torch.device) -> Tensor:
        """Return (batch or 1, queries, keys): the position of each key minus that of each of `length` queries."""
        keys = torch.arange(self.start + length, device=device)
        return keys - self.compute_query_positions(length, device)[..., None]


def _view_heads(projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
    """(batch, length, sum(heads)·head) -> views (batch, heads[i], length, head)."""
    return projected.unflatten(-1, (sum(heads), -1)).transpose(1, 2).split(heads, dim=1)


class _SplitHeads(torch.autograd.Function):
    """Contiguous copies of `_view_heads`, which multiply faster; the gradient is written into one tensor."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.heads = heads
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in _view_heads(projected, heads))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        batch, _, length, head = gradients[0].shape
        projected_gradient = gradients[0].new_empty(batch, length, sum(ctx.heads) * head)
        for part, gradient in zip(_view_heads(projected_gradient, ctx.heads), gradients, strict=True):
            part.copy_(gradient)
        return projected_gradient, None


class MultiHeadAttention(nn.Module):
    """Multi-head attention, from `x` to itself or to an encoder output, which is projected once for any target length.

    One matrix holds the projections to queries, keys and values, in this order; cross-attention applies the first part
    to `x` and the rest to the encoder output.

    Attributes:
        captured: see `capture_attention_weights`.
    """

    captured: list[Tensor] | None = None

    def __init__(self, config: ModelConfig, *, layer: int = 0, is_cross: bool = False) -> None:
        """Build the attention of a layer, counted from 0 in its stack."""
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
        self.query_norm = nn.RMSNorm(self.head_size, config.norm_eps) if config.qk_norm else None
        self.key_norm = nn.RMSNorm(self.head_size, config.norm_eps) if config.qk_norm else None
        self.value_scalars = nn.Parameter(torch.empty(2)) if config.value_residual and not is_cross else None
        self.n_offset_heads = 0 if is_cross else config.n_offset_heads

    def initialise(self) -> None:
        """Mix both values equally. Source: Zhou et al. 2024."""
        if self.value_scalars is not None:
            nn.init.constant_(self.value_scalars, 0.5)

    def count_query_key_pairs(self, length: int, *, is_causal: bool) -> float:
        """Return the number of query-key pairs in a sequence; causal attention has half of them."""
        return length * length / 2 if is_causal else float(length * length)

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attend from each position of `x`.

        Args:
            x: (batch, length, d_model).
            inputs: the encoder output to attend to instead of `x`, the mask, positions and caches.

        Returns:
            (batch, length, d_model).

        Source: Vaswani et al. 2017, section 3.2.2.
        """
        query, key, value = self.project_qkv(x, inputs)
        if self.captured is not None:
            self.captured.append(self.weights(query, key, inputs))
        attended = self.attend_heads(query, key, value, inputs)
        return self.output(attended.transpose(1, 2).flatten(2))

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to (batch, heads, length, head) queries, and to all keys and values, cached ones included."""
        cache = None if inputs.caches is None else inputs.caches[self.layer]
        if inputs.encoder_output is None:
            query, key, value = self.project_self(x, inputs)
            key = normalise(self.key_norm, key)
            key = key if inputs.rotation is None else inputs.rotation(key)
        else:
            width = self.heads * self.head_size
            (query,) = self._split(self.input.forward_slice(x, slice(0, width)), self.heads)
            query = normalise(self.query_norm, query)
            if cache is not None and cache.length:
                return query, *cache.keys_and_values()
            projected = self.input.forward_slice(inputs.encoder_output, slice(width, None))
            key, value = self._split(projected, self.kv_heads, self.kv_heads)
            key = normalise(self.key_norm, key)
        key, value = (key, value) if cache is None else cache.extend(key, value)
        return query, offset_keys(key, self.n_offset_heads), value

    def project_self(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, which are ready, keys, which are neither normalised nor rotated, and mixed values."""
        query, key, value = self._split(self.input(x), self.heads, self.kv_heads, self.kv_heads)
        query = normalise(self.query_norm, query)
        if self.value_scalars is not None:
            if not inputs.first_layer_values:
                inputs.first_layer_values.append(value)
            first_weight, own_weight = self.value_scalars
            value = first_weight * inputs.first_layer_values[0] + own_weight * value
        return query if inputs.rotation is None else inputs.rotation(query), key, value

    def _split(self, projected: Tensor, *heads: int) -> tuple[Tensor, ...]:
        """(batch, length, sum(heads)·head) -> one (batch, heads[i], length, head) each."""
        if projected.requires_grad:
            return _SplitHeads.apply(projected, heads)  # type: ignore[no-untyped-call]
        return _view_heads(projected, heads)

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attend with (batch, heads, length, head) queries; return the same shape."""
        relative = inputs.relative_embeddings[self.layer] if inputs.relative_embeddings else ()
        return attend(query, key, value, mask=self.mask(query, inputs), dropout=self.active_dropout, relative=relative)

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        """Return the mask with the bias of relative positions."""
        if not inputs.relative_embeddings:
            return inputs.mask
        first, *others = (embeddings.scores(query) for embeddings in inputs.relative_embeddings[self.layer])
        return inputs.mask.with_bias(sum(others, first))

    @property
    def active_dropout(self) -> float:
        """The dropout rate of the attention weights in the current mode."""
        return self.dropout if self.training else 0.0

    @torch.no_grad()
    def weights(self, query: Tensor, key: Tensor, inputs: AttentionInputs) -> Tensor:
        """Compute the attention weights, without dropout: (batch, heads, queries, positions) float32.

        Rows sum to one; a row without any visible key is zero.
        """
        mask, groups = self.mask(query, inputs), self.heads // self.kv_heads
        with torch.autocast(query.device.type, enabled=False):
            scores = query.float() @ key.float().repeat_interleave(groups, dim=1).transpose(-1, -2)
        scores = scores * self.head_size**-0.5
        if mask.bias is not None:
            scores = scores + mask.bias.float()
        allowed = mask.build_tensor(query.shape[2], key.shape[2], query.device)
        if allowed is None:
            return scores.softmax(-1)
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


def offset_keys(key: Tensor, heads: int) -> Tensor:
    """Return (batch, kv_heads, length, head) keys of which the last `heads` are those of the position before, or zero.

    So one layer finds the token that followed the current one before, for which it otherwise takes two (induction).

    Source: modded-nanogpt (Jordan et al. 2025), whose partial key offset moves half of the features of each head.
    """
    if not heads:
        return key
    return torch.cat((key[:, :-heads], F.pad(key[:, -heads:, :-1], (0, 0, 1, 0))), dim=1)


def normalise(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
    """Normalise queries or keys in their dtype; under autocast a GPU would use float32."""
    if norm is None:
        return x
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps).to(x.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask,
    dropout: float = 0.0,
    relative: Sequence[RelativeEmbeddings] = (),
) -> Tensor:
    """Scaled dot-product attention with grouped key/value heads; a query without any visible key gets zeros.

    Args:
        query: (batch, heads, queries, head).
        key: (batch, kv_heads, keys, head), where kv_heads divides heads.
        value: like `key`.
        mask: which keys each query may attend to.
        relative: embeddings to add to the values; those of the keys are in the mask's bias.

    Returns:
        (batch, heads, queries, head).

    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023.
    """
    n_queries, n_keys = query.shape[2], key.shape[2]
    if relative or matmuls_are_faster(query, n_keys, dropout, mask.bias):
        return _matmul_attention(query, key, value, mask, dropout, relative)
    grouped, is_plain = query.shape[1] != key.shape[1], mask.needs_no_tensor(n_queries, n_keys)
    if grouped and query.is_cuda and not (is_plain and query.dtype is not torch.float32):
        # only flash attention has grouped heads; the other fused kernels save memory where it can't be used
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
        grouped = False
    if is_plain:
        flag = mask.is_causal and n_queries > 1
        if flag and not dropout and uses_blocks(query, n_keys):
            return blockwise_causal_attention(query, key, value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=flag, dropout_p=dropout, enable_gqa=grouped)
    scores_mask = mask.build_tensor(n_queries, n_keys, query.device)
    if mask.bias is not None:
        bias = mask.bias.to(query.dtype)
        scores_mask = bias if scores_mask is None else bias.masked_fill(~scores_mask, -torch.inf)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=scores_mask, dropout_p=dropout, enable_gqa=grouped
    )


def matmuls_are_faster(query: Tensor, n_keys: int, dropout: float, bias: Tensor | None) -> bool:
    """Return whether two matmuls are faster than torch's fused kernel, as often on a CPU.

    There the fused kernel supports neither dropout nor the gradient of a bias, and its backward pass in bfloat16 is
    slow. Forward and backward at 8 rows, 6 heads, 256 positions, head 64, bfloat16, 2 threads: fused 27 ms, matmuls 14
    ms; they break even between 512 and 1024 positions. In float32 the fused kernel wins at every length, except forward
    with many rows of a few queries and keys each: 5 queries and 24 keys take it 3.1 µs per head, matmuls 1.4 µs.
    """
    if query.device.type != "cpu":
        return False
    batch, heads, n_queries, _ = query.shape
    backward = query.requires_grad and query.dtype is torch.bfloat16
    tiny = query.dtype is torch.float32 and not query.requires_grad and batch * heads >= _MIN_HEADS
    return (
        dropout > 0
        or (bias is not None and bias.requires_grad)
        or (backward and n_keys <= _MAX_KEYS_FOR_MATMULS)
        or (tiny and n_queries <= _MAX_QUERIES and n_keys <= _MAX_KEYS)
    )


def _matmul_attention(  # noqa: PLR0917 (as `attend` has them)
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, relative: Sequence[RelativeEmbeddings]
) -> Tensor:
    """Compute softmax(query keyᵀ / √head) value as two matmuls, with one key/value head per group of query heads.

    torch's softmax of bfloat16 computes in float32 internally, which saves two passes over the scores each way; but on
    rows that don't fill its vectors it takes two to five times as long as casting them.
    """
    batch, heads, n_queries, head = query.shape
    kv_heads, n_keys = key.shape[1:3]
    groups = heads // kv_heads
    with torch.autocast(query.device.type, enabled=False):
        scores = (query * head**-0.5).reshape(batch, kv_heads, groups * n_queries, head) @ key.transpose(-1, -2)
        scores = scores.view(batch, heads, n_queries, n_keys)
        if n_keys % _VECTOR_SIZE or mask.bias is not None:
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask.bias is not None:
            scores = scores + mask.bias.to(scores.dtype)
        allowed = mask.build_tensor(n_queries, n_keys, scores.device)
        if n_keys < _MIN_SOFTMAX_KEYS:
            scores, value, allowed = _pad_keys(scores, value, allowed)
        weights = apply_dropout(_masked_softmax(scores, allowed).to(query.dtype), dropout)
        output = (weights.view(batch, kv_heads, groups * n_queries, -1) @ value).view(batch, heads, n_queries, head)
        if relative:
            first, *others = (embeddings.output(weights[..., :n_keys]) for embeddings in relative)
            output = output + sum(others, first)
        return output


def _pad_keys(scores: Tensor, value: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Pad to 16 keys with masked ones: a softmax over 16 takes a tenth of the time of one over 15."""
    added = _MIN_SOFTMAX_KEYS - scores.shape[-1]
    if allowed is None:
        allowed = torch.ones(1, 1, 1, scores.shape[-1], dtype=torch.bool, device=scores.device)
    return F.pad(scores, (0, added)), F.pad(value, (0, 0, 0, added)), F.pad(allowed, (0, added))


def _masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the allowed keys; zeros, not NaN, where none is allowed."""
    if allowed is None:
        return scores.softmax(-1)
    floor = scores.new_zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(scores.dtype).min)
    weights = (scores + floor).softmax(-1)
    sees_nothing = ~allowed.any(-1, keepdim=True)
    if (
        weights.device.type != "cpu" or torch.compiler.is_compiling() or bool(sees_nothing.any())
    ):  # a GPU would synchronise
        weights = weights.masked_fill(sees_nothing, 0.0)
    return weights


@contextmanager
def capture_attention_weights(attentions: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Capture the weights of attention layers while the model runs inside the `with`.

    Args:
        attentions: layers with an attribute `captured`, for instance `model.decoder.attention_layers(cross=True)`.

    Yields:
        A list that grows by (batch, heads, queries, keys) float32 with each call of one of the layers: after one
        forward pass it holds the layers in order.
    """
    weights: list[Tensor] = []
    for attention in attentions:
        attention.captured = weights
    try:
        yield weights
    finally:
        for attention in attentions:
            attention.captured = None
