"""Causal attention of long sequences written out block by block, where that beats torch's fused kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.hardware import one_thread

_BLOCK = 128
"""Queries that are computed together, with the keys up to the last of them."""
_SHORTEST = 512
"""Positions beyond which it may be used."""
_TIMED, _TRIES, _CLEARLY = (1, 2, 1024, 64), 5, 1.25
"""The heads that both ways are timed with, how often, and how many times as fast blocks must be to be taken."""


def blocks_are_faster(query: Tensor, n_keys: int) -> bool:
    """Whether causal attention from these (batch, heads, queries, head) to as many keys is faster by blocks.

    torch's fused kernel for a CPU computes in float32 between its products and leaves most of a processor's bfloat16
    unused: 4 rows, 12 heads, 1024 positions, head 64, one thread of an AMD EPYC with AVX512-BF16 took it 132 ms, blocks
    69 ms. In float32 blocks are slower. Training is left to the kernels that it has.
    """
    return (
        query.dtype is torch.bfloat16
        and query.device.type == "cpu"
        and query.shape[2] == n_keys > _SHORTEST
        and not query.requires_grad
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _were_faster()
    )


def attend_by_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention; (batch, heads, length, head) of each, or fewer heads of keys and values -> the same shape."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    query, length = query * query.shape[-1] ** -0.5, query.shape[2]
    future = torch.full((_BLOCK, _BLOCK), -torch.inf, dtype=query.dtype).triu(1)
    found = []
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        scores = query[:, :, start:end] @ key[:, :, :end].transpose(-1, -2)
        scores[..., start:] += future[: end - start, : end - start]
        found.append(scores.softmax(-1) @ value[:, :, :end])
    return torch.cat(found, dim=2)


@cache
def _were_faster() -> bool:
    """Whether they clearly are here: both ways in turns, with one thread, since others may be at work."""
    heads = torch.zeros(_TIMED, dtype=torch.bfloat16)
    with one_thread():
        rounds = [
            (_seconds(lambda: _fused(heads)), _seconds(lambda: attend_by_blocks(heads, heads, heads)))
            for _ in range(1 + _TRIES)
        ]
    return statistics.median(fused / blocks for fused, blocks in rounds[1:]) > _CLEARLY


def _fused(heads: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
