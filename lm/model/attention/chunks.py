"""Long computations in parts, of which the backward pass holds one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(compute: Callable[[int, int], Tensor], chunks: Sequence[tuple[int, int]], *, draws: bool) -> Tensor:
    """What `compute` makes of each chunk, one after the other along the length.

    If there are several, nothing that was made on the way is kept for the backward pass: it computes a chunk again.

    Args:
        compute: gives (batch, heads, positions, head) for the first and the end of a chunk.
        chunks: first and end of each.
        draws: whether it draws random numbers, which must be the same again.

    Returns:
        (batch, heads, positions of all chunks, head).

    Source: Chen et al. 2016 (sublinear memory cost).
    """
    if len(chunks) == 1:
        return compute(*chunks[0])
    if not torch.is_grad_enabled():
        return torch.cat([compute(*chunk) for chunk in chunks], dim=2)
    parts = [checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=draws) for chunk in chunks]
    return torch.cat(parts, dim=2)


def even_chunks(total: int, cost: int, *, most: int, start: int = 0) -> list[tuple[int, int]]:
    """Chunks of `start` … `total` of about the same size, so that each costs at most `most`, but has one at least.

    Args:
        total: where the last ends.
        cost: of each element.
        most: the cost of a chunk.
        start: where the first begins.
    """
    n_chunks = max(1, -(-(total - start) * cost // most))
    size = max(1, -(-(total - start) // n_chunks))
    return [(first, min(first + size, total)) for first in range(start, total, size)]
