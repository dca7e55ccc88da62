"""Multi-head self- and cross-attention, and the scaled dot-product attention kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.attention_inputs import AttentionInputs, RelativeEmbeddings
from lm.model.blockwise_attention import blockwise_causal_attention, is_blockwise_faster
from lm.model.kv_cache import LayerKVCache
from lm.model.layers import Linear, RMSNorm, output_std
from lm.model.layers import dropout as apply_dropout
from lm.model.mask import Mask
from lm.model.module import Module, count_macs

_MAX_KEYS_FOR_MATMULS = 512
"""Keys up to which two matmuls beat torch's fused kernel, forward and backward in bfloat16."""
_MIN_HEADS, _MAX_QUERIES, _MAX_KEYS = 64, 16, 64
"""Heads of all rows from which, and queries and keys up to which, two matmuls beat it forward in float32."""
_MIN_SOFTMAX_KEYS = 16
"""The fewest keys of a softmax on a CPU; see `_pad_keys`."""
_VECTOR_SIZE = 32
"""Bfloat16 numbers in a 512-bit vector; see `_matmul_attention`."""


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


class Attention(Module):
    """An attention layer whose weights can be computed for inspection."""

    def weights(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """Compute the attention weights, without dropout.

        Args:
            x: (batch, length, d_model).

        Returns:
            (batch, heads, queries, positions) float32.
        """
        raise NotImplementedError


class MultiHeadAttention(Attention):
    """Multi-head attention, from `x` to itself or to an encoder output.

    One matrix holds the projections to queries, keys and values, in this order; cross-attention applies the first part
    to `x` and the rest to the encoder output.
    """

    part = "attention"
    parts: ClassVar = {"value_scalars": "residual scalars"}

    def __init__(self, config: ModelConfig, *, layer: int = 0, value_residual: bool = False) -> None:
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
        self.query_norm = RMSNorm(self.head_size, config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(self.head_size, config.norm_eps) if config.qk_norm else None
        self.value_scalars = nn.Parameter(torch.empty(2)) if value_residual else None

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
        attended = self.attend_heads(*self.project_qkv(x, inputs), inputs)
        return self.output(attended.transpose(1, 2).flatten(2))

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attend with (batch, heads, length, head) queries; return the same shape."""
        relative = inputs.relative_embeddings_of(self.layer)
        return attend(query, key, value, mask=self.mask(query, inputs), dropout=self.active_dropout, relative=relative)

    @property
    def active_dropout(self) -> float:
        """The dropout rate of the attention weights in the current mode."""
        return self.dropout if self.training else 0.0

    def new_cache(self) -> LayerKVCache:
        return LayerKVCache()

    def weights(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weights`; self-attention must be called without a cache, which would be extended twice."""
        assert inputs.encoder_output is not None or inputs.caches is None, "the cache would be extended twice"
        query, key, _ = self.project_qkv(x, replace(inputs, first_layer_values=None))
        weights = compute_attention_weights(query, key, mask=self.mask(query, inputs))
        return weights if inputs.encoder_output is not None else self.weights_by_position(weights, x.shape[1])

    def weights_by_position(self, weights: Tensor, length: int) -> Tensor:  # noqa: ARG002 (it matters where keys are fewer)
        """Expand (batch, heads, queries, keys) weights to the `length` positions that the keys come from."""
        return weights

    def project_qkv(self, x: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Project to (batch, heads, length, head) queries, and to all keys and values, cached ones included."""
        cache = inputs.layer_cache(self.layer)
        if inputs.encoder_output is not None:
            return self._project_cross(x, inputs.encoder_output, cache)
        query, key, value = self._project_self(x)
        if inputs.rotation is not None:
            query, key = inputs.rotation(query), inputs.rotation(key)
        if inputs.first_layer_values is not None and self.value_scalars is not None:
            value = inputs.first_layer_values.mix(value, self.value_scalars)
        if cache is not None:
            key, value = cache.extend(key, value)
        return query, key, value

    def mask(self, query: Tensor, inputs: AttentionInputs) -> Mask:
        """Return the mask with the bias of relative positions."""
        relative = inputs.relative_embeddings_of(self.layer)
        return inputs.mask if relative is None else inputs.mask.with_bias(relative.scores(query))

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self._split(self.input(x), (self.heads, self.kv_heads, self.kv_heads))
        return self._normalise(self.query_norm, query), self._normalise(self.key_norm, key), value

    def _project_cross(
        self, x: Tensor, encoder_output: Tensor, cache: LayerKVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        width = self.heads * self.head_size
        projected_query = self.input.forward_slice(x, slice(0, width))
        query = self._normalise(self.query_norm, *self._split(projected_query, (self.heads,)))
        if cache is not None and cache.length:
            return query, *cache.keys_and_values()
        projected_output = self.input.forward_slice(encoder_output, slice(width, None))
        key, value = self._split(projected_output, (self.kv_heads, self.kv_heads))
        key = self._normalise(self.key_norm, key)
        return query, *(cache.extend(key, value) if cache is not None else (key, value))

    def _split(self, projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        """(batch, length, sum(heads)·head) -> one (batch, heads[i], length, head) each."""
        if projected.requires_grad:
            return _SplitHeads.apply(projected, heads)  # type: ignore[no-untyped-call]
        return _view_heads(projected, heads)

    @staticmethod
    def _normalise(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
        """Normalise in the dtype of `x`; under autocast a GPU would use float32."""
        if norm is None:
            return x
        return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps).to(x.dtype)


class CrossAttention(MultiHeadAttention):
    """Attention from each target position to an encoder output, which is projected once for any target length."""

    part = "cross-attention"

    def macs_per_source_position(self) -> float:
        """Return the MACs of keys and values, which are per source position."""
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
    if relative is not None or matmuls_are_faster(query, n_keys, dropout, mask.bias):
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
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, relative: RelativeEmbeddings | None = None
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
        return output if relative is None else output + relative.output(weights[..., :n_keys])


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


def compute_attention_weights(query: Tensor, key: Tensor, *, mask: Mask) -> Tensor:
    """Compute the weights of `attend`, without dropout.

    Args:
        query: (batch, heads, queries, head).
        key: (batch, kv_heads, keys, head), where kv_heads divides heads.
        mask: which keys each query may attend to.

    Returns:
        (batch, heads, queries, keys) float32. Rows sum to one; a row without any visible key is zero.
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
    """Capture the weights of attention layers while the model runs inside the `with`.

    Args:
        attentions: for instance `model.decoder.attention_layers(cross=True)`.

    Yields:
        A list that grows by (batch, heads, queries, keys) float32 with each call of one of the layers: after one
        forward pass it holds the layers in order. Self-attention must be called without a cache.
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
