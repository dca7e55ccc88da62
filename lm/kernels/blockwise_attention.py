"""Causal attention of long sequences in bfloat16, computed block by block where that is faster than torch's kernel."""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.hardware import times_as_fast

_BLOCK = 128
"""Queries that are computed together, with the keys up to the last of them."""
_SHORTEST = 512
"""Positions beyond which it may be used."""
_TIMED, _TRIES, _CLEARLY = (1, 2, 1024, 64), 5, 1.25
"""The heads that both ways are timed with, how often, and how many times as fast blocks must be to be taken."""

_types_by_blocks: set[torch.dtype] = set()


def choose_blockwise_attention(dtype: torch.dtype, context_length: int) -> None:
    """Settle whether long causal attention in a type is computed by blocks: where it is clearly faster, in bfloat16.

    Both ways are timed once in a process, in turns. Until then torch computes all of it.
    """
    if dtype is torch.bfloat16 and context_length > _SHORTEST and _is_clearly_faster():
        _types_by_blocks.add(dtype)


def is_blockwise_faster(query: Tensor, n_keys: int) -> bool:
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


def blockwise_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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
def _is_clearly_faster() -> bool:
    """Whether they clearly are here, in turns with the fused kernel."""
    heads = torch.zeros(_TIMED, dtype=torch.bfloat16)
    return (
        times_as_fast(partial(blockwise_causal_attention, *3 * [heads]), partial(_fused_attention, heads), tries=_TRIES)
        > _CLEARLY
    )


def _fused_attention(heads: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
