"""Attention weights, for looking at: computed beside the model by hooks, so that it runs as it always does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from lm.model.attention.attention import MultiHeadAttention
from lm.model.recurrent import RecurrentAttention
from lm.model.scope.masks import Mask
from lm.model.scope.scope import Scope


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
def captured(attentions: Iterable[MultiHeadAttention | RecurrentAttention]) -> Iterator[list[Tensor]]:
    """The weights of some attention layers while the model runs inside the `with`.

    Args:
        attentions: for instance `model.decoder.attentions(cross=True)`.

    Yields:
        A list that grows by (batch, heads, queries, keys) float32 whenever one of the layers is called: after one
        run of a model it holds the layers in order. Layers of self-attention have to be called without a cache.
    """
    weights: list[Tensor] = []

    def note(attention: nn.Module, inputs: tuple[Tensor, Scope]) -> None:
        x, scope = inputs
        assert isinstance(attention, (MultiHeadAttention, RecurrentAttention))
        assert scope.memory is not None or scope.caches is None, "a cache would be extended twice"
        with torch.no_grad():
            if isinstance(attention, RecurrentAttention):
                weights.append(attention.weights(x, scope))
                return
            query, key, _ = attention.project(x, replace(scope, first_values=None))
            found = attention_weights(query, key, mask=attention.mask(query, scope))
            weights.append(found if scope.memory is not None else attention.over_positions(found, x.shape[1]))

    hooks = [attention.register_forward_pre_hook(note) for attention in attentions]
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()
