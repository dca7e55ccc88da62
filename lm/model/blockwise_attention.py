"""Causal attention of long sequences in bfloat16, computed block by block where that is faster than torch's kernel."""

from __future__ import annotations

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.hardware import measure_speedup

_BLOCK = 128
"""Queries per block."""
_MIN_LENGTH = 512
"""Positions beyond which it may be used."""
_TIMED_SHAPE, _TRIALS, _MIN_SPEEDUP = (1, 2, 1024, 64), 5, 1.25
"""The (batch, heads, positions, head) that is timed, the number of trials, and the least speed-up."""

blockwise_dtypes: set[torch.dtype] = set()
"""Dtypes in which long causal attention is computed block by block in this process."""


def choose_blockwise_attention(dtype: torch.dtype, context_length: int) -> None:
    """Choose whether long causal attention in a dtype is computed block by block: if clearly faster, in bfloat16.

    Both are timed once per process, alternating. Until then torch's kernel is used.
    """
    if dtype is torch.bfloat16 and context_length > _MIN_LENGTH and is_clearly_faster():
        blockwise_dtypes.add(dtype)


def is_blockwise_faster(query: Tensor, n_keys: int) -> bool:
    """Whether causal attention from (batch, heads, queries, head) to as many keys is faster block by block.

    torch's fused CPU kernel computes in float32 between its matmuls and leaves most of a processor's bfloat16 units
    unused: 4 rows, 12 heads, 1024 positions, head 64, one thread of an AMD EPYC with AVX512-BF16: 132 ms, block by
    block 69 ms. In float32 blocks are slower. Training uses torch's kernels.
    """
    return (
        query.dtype in blockwise_dtypes
        and query.device.type == "cpu"
        and query.shape[2] == n_keys > _MIN_LENGTH
        and not query.requires_grad
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def blockwise_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention: (batch, heads, length, head), with fewer key/value heads if grouped -> the same shape."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    batch, heads, length, head = query.shape
    output = query.new_empty(batch, length, heads, head).transpose(1, 2)  # the layout that the output projection reads
    query = (query * head**-0.5).flatten(0, 1)
    key, value = key.transpose(-1, -2).flatten(0, 1), value.flatten(0, 1)  # one copy for all blocks
    future = torch.full((_BLOCK, _BLOCK), -torch.inf, dtype=query.dtype).triu(1)
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        scores = query[:, start:end] @ key[:, :, :end]
        scores[..., start:] += future[: end - start, : end - start]
        output[:, :, start:end] = (scores.softmax(-1) @ value[:, :end]).unflatten(0, (batch, heads))
    return output


@cache
def is_clearly_faster() -> bool:
    """Whether blocks are clearly faster than torch's kernel on this processor in bfloat16: both timed, alternating."""
    heads = torch.zeros(_TIMED_SHAPE, dtype=torch.bfloat16)
    return (
        measure_speedup(
            partial(blockwise_causal_attention, *3 * [heads]),
            partial(F.scaled_dot_product_attention, heads, heads, heads, is_causal=True),
            tries=_TRIALS,
        )
        > _MIN_SPEEDUP
    )
