"""Scaled dot-product and multi-head attention: self- and cross-attention in one class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.hardware import times_as_fast
from lm.model.attention_inputs import KeyValueCache, Mask, RelativeTables, Scope
from lm.model.layers import Linear, RMSNorm, output_std
from lm.model.layers import dropout as dropped_out
from lm.model.module import Module, multiplied

_LONGEST_FOR_PRODUCTS = 512
"""Keys up to which two products beat torch's fused kernel forward and backward in bfloat16."""
_MANY_HEADS, _FEW_QUERIES, _FEW_KEYS = 64, 16, 64
"""Heads of all rows from which, and queries and keys up to which, they beat it forward in float32."""
_FEWEST_KEYS = 16
"""Keys that a softmax on a CPU is given at least; see `_filled_up`."""
_VECTOR = 32
"""Numbers in bfloat16 that fill a vector of 512 bits; see `_two_products`."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask,
    dropout: float = 0.0,
    relative: RelativeTables | None = None,
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
    if relative is not None or _products_are_faster(query, n_keys, dropout, mask.bias):
        return _two_products(query, key, value, mask, dropout, relative)
    grouped = query.shape[1] != key.shape[1]
    if mask.is_flag(n_queries, n_keys):
        flag = mask.is_causal and n_queries > 1
        if flag and not dropout and blocks_are_faster(query, n_keys):
            return attend_by_blocks(query, key, value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=flag, dropout_p=dropout, enable_gqa=grouped)
    scores_mask = mask.allowed(n_queries, n_keys, query.device)
    if mask.bias is not None:
        bias = mask.bias.to(query.dtype)
        scores_mask = bias if scores_mask is None else bias.masked_fill(~scores_mask, -torch.inf)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=scores_mask, dropout_p=dropout, enable_gqa=grouped
    )


def _products_are_faster(query: Tensor, n_keys: int, dropout: float, bias: Tensor | None) -> bool:
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


def _two_products(  # noqa: PLR0917 (as `attend` has them)
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, relative: RelativeTables | None = None
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
        allowed = mask.allowed(n_queries, n_keys, scores.device)
        if n_keys < _FEWEST_KEYS:
            scores, value, allowed = _filled_up(scores, value, allowed)
        weights = dropped_out(_masked_softmax(scores, allowed).to(query.dtype), dropout)
        output = (weights.view(batch, kv_heads, groups * n_queries, -1) @ value).view(batch, heads, n_queries, head)
        return output if relative is None else output + relative.output(weights[..., :n_keys])


def _filled_up(scores: Tensor, value: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
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


def _by_head(projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
    """(batch, length, sum(heads)·head) -> views (batch, heads[i], length, head)."""
    return projected.unflatten(-1, (sum(heads), -1)).transpose(1, 2).split(heads, dim=1)


class _Heads(torch.autograd.Function):
    """Contiguous copies of what `_by_head` gives, faster to multiply; their gradients go into one tensor at once."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:  # noqa: ANN401 (torch's own)
        ctx.heads = heads
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in _by_head(projected, heads))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        batch, _, length, head = gradients[0].shape
        of_projected = gradients[0].new_empty(batch, length, sum(ctx.heads) * head)
        for part, gradient in zip(_by_head(of_projected, ctx.heads), gradients, strict=True):
            part.copy_(gradient)
        return of_projected, None


class Attention(Module):
    """Attention of a layer, whose weights can be computed for looking at."""

    def weights(self, x: Tensor, scope: Scope) -> Tensor:
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

    def pairs(self, length: int, *, is_causal: bool) -> float:
        """How many pairs of a query and a key meet in a sequence, of which causal attention sees half."""
        return length * length / 2 if is_causal else float(length * length)

    def cached_values(self) -> Fraction:
        """How many numbers a cache holds for each position."""
        return Fraction(2 * self.kv_heads * self.head_size)

    def forward(self, x: Tensor, scope: Scope) -> Tensor:
        """Attend from each position of `x` to what `scope` lets it see.

        Args:
            x: (batch, length, d_model).
            scope: the keys and values of `x` itself or of a memory, and which of them each position sees.

        Returns:
            (batch, length, d_model).

        Source: Vaswani et al. 2017, section 3.2.2.
        """
        attended = self.attended(*self.project(x, scope), scope)
        return self.output(attended.transpose(1, 2).flatten(2))

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> Tensor:
        """What (batch, heads, length, head) queries find in the values: as many."""
        relative = scope.tables(self.layer)
        return attend(query, key, value, mask=self.mask(query, scope), dropout=self.dropped, relative=relative)

    @property
    def dropped(self) -> float:
        """The share of attention weights that is dropped now."""
        return self.dropout if self.training else 0.0

    def new_cache(self) -> KeyValueCache:
        """What this layer remembers of earlier positions: nothing yet."""
        return KeyValueCache()

    def weights(self, x: Tensor, scope: Scope) -> Tensor:
        """See `Attention.weights`; self-attention has to be called without a cache, which would be extended twice."""
        assert scope.memory is not None or scope.caches is None, "a cache would be extended twice"
        query, key, _ = self.project(x, replace(scope, first_values=None))
        found = attention_weights(query, key, mask=self.mask(query, scope))
        return found if scope.memory is not None else self.over_positions(found, x.shape[1])

    def over_positions(self, weights: Tensor, length: int) -> Tensor:  # noqa: ARG002 (it matters where keys are fewer)
        """Weights of keys, (batch, heads, queries, keys), as those of the `length` positions that they come from."""
        return weights

    def project(self, x: Tensor, scope: Scope) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, length, head) of `x`, and all the keys and values that they may meet."""
        cache = scope.cache(self.layer)
        if scope.memory is not None:
            return self._project_across(x, scope.memory, cache)
        query, key, value = self._project(x)
        if scope.rotation is not None:
            query, key = scope.rotation(query), scope.rotation(key)
        if scope.first_values is not None and self.value_shares is not None:
            value = scope.first_values.mix(value, self.value_shares)
        if cache is not None:
            key, value = cache.extend(key, value)
        return query, key, value

    def mask(self, query: Tensor, scope: Scope) -> Mask:
        """Which keys each query may see, and what is added to its scores, by their distances among others."""
        relative = scope.tables(self.layer)
        return scope.mask if relative is None else scope.mask.with_bias(relative.scores(query))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self._split(self.input(x), (self.heads, self.kv_heads, self.kv_heads))
        return self._normalise(self.query_norm, query), self._normalise(self.key_norm, key), value

    def _project_across(self, x: Tensor, memory: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor, Tensor]:
        width = self.heads * self.head_size
        of_query = self.input.some(x, slice(0, width))
        query = self._normalise(self.query_norm, *self._split(of_query, (self.heads,)))
        if cache is not None and cache.length:
            return query, *cache.contents()
        of_memory = self.input.some(memory, slice(width, None))
        key, value = self._split(of_memory, (self.kv_heads, self.kv_heads))
        key = self._normalise(self.key_norm, key)
        return query, *(cache.extend(key, value) if cache is not None else (key, value))

    def _split(self, projected: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        """(batch, length, sum(heads)·head) -> one (batch, heads[i], length, head) each."""
        if projected.requires_grad:
            return _Heads.apply(projected, heads)  # type: ignore[no-untyped-call]
        return _by_head(projected, heads)

    @staticmethod
    def _normalise(norm: nn.RMSNorm | None, x: Tensor) -> Tensor:
        """Normalise in the dtype of `x`, which a GPU's autocast would leave for float32."""
        if norm is None:
            return x
        return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps).to(x.dtype)


class CrossAttention(MultiHeadAttention):
    """Attention from each position of a target to a memory, which is projected once whatever the target's length."""

    part = "cross-attention"

    def weights_per_position(self) -> float:
        """The weights that a position of the target is multiplied by: queries, outputs and all adapters."""
        return super().weights_per_position() - self.weights_per_source_position()

    def weights_per_source_position(self) -> float:
        """The weights that a position of the memory is multiplied by: those of keys and values."""
        return multiplied(self.input.weight) * 2 * self.kv_heads / (self.heads + 2 * self.kv_heads)


_BLOCK = 128
"""Queries that are computed together, with the keys up to the last of them."""
_SHORTEST = 512
"""Positions beyond which it may be used."""
_TIMED, _TRIES, _CLEARLY = (1, 2, 1024, 64), 5, 1.25
"""The heads that both ways are timed with, how often, and how many times as fast blocks must be to be taken."""


_types_by_blocks: set[torch.dtype] = set()


def choose_causal_blocks(dtype: torch.dtype, context_length: int) -> None:
    """Settle whether long causal attention in a type is computed by blocks: where it is clearly faster, in bfloat16.

    Both ways are timed once in a process, in turns. Until then torch computes all of it.
    """
    if dtype is torch.bfloat16 and context_length > _SHORTEST and _were_faster():
        _types_by_blocks.add(dtype)


def blocks_are_faster(query: Tensor, n_keys: int) -> bool:
    """Whether causal attention from these (batch, heads, queries, head) to as many keys is faster by blocks.

    torch's fused kernel for a CPU computes in float32 between its products and leaves most of a processor's bfloat16
    unused: 4 rows, 12 heads, 1024 positions, head 64, one thread of an AMD EPYC with AVX512-BF16 took it 132 ms, blocks
    69 ms. In float32 blocks are slower. Training is left to the kernels that it has.
    """
    return (
        query.dtype in _types_by_blocks
        and query.device.type == "cpu"
        and query.shape[2] == n_keys > _SHORTEST
        and not query.requires_grad
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def attend_by_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention; (batch, heads, length, head) of each, or fewer heads of keys and values -> the same shape."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    batch, heads, length, head = query.shape
    found = query.new_empty(batch, length, heads, head).transpose(1, 2)  # as the output layer reads it
    query = (query * head**-0.5).flatten(0, 1)
    key, value = key.transpose(-1, -2).flatten(0, 1), value.flatten(0, 1)  # copied once, not for each block
    future = torch.full((_BLOCK, _BLOCK), -torch.inf, dtype=query.dtype).triu(1)
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        scores = query[:, start:end] @ key[:, :, :end]
        scores[..., start:] += future[: end - start, : end - start]
        found[:, :, start:end] = (scores.softmax(-1) @ value[:, :end]).unflatten(0, (batch, heads))
    return found


@cache
def _were_faster() -> bool:
    """Whether they clearly are here, in turns with the fused kernel."""
    heads = torch.zeros(_TIMED, dtype=torch.bfloat16)
    return times_as_fast(partial(attend_by_blocks, *3 * [heads]), partial(_fused, heads), tries=_TRIES) > _CLEARLY


def _fused(heads: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def attention_weights(query: Tensor, key: Tensor, *, mask: Mask) -> Tensor:
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
    allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
    if allowed is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@contextmanager
def captured(attentions: Iterable[Attention]) -> Iterator[list[Tensor]]:
    """The weights of some attention layers while the model runs inside the `with`.

    Args:
        attentions: for instance `model.decoder.attentions(cross=True)`.

    Yields:
        A list that grows by (batch, heads, queries, keys) float32 whenever one of the layers is called: after one
        run of a model it holds the layers in order. Layers of self-attention have to be called without a cache.
    """
    weights: list[Tensor] = []

    def note(attention: nn.Module, inputs: tuple[Tensor, Scope]) -> None:
        assert isinstance(attention, Attention)
        with torch.no_grad():
            weights.append(attention.weights(*inputs))

    hooks = [attention.register_forward_pre_hook(note) for attention in attentions]
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()
