"""Bucketing: batches of items of similar length, so that little of them is padding.

Whatever is batched by length is batched here: pairs in training, examples and pairs that are scored, windows of
documents, lines that are translated, and the words of BPE dropout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def length_batches(
    lengths: Sequence[int] | Integers,
    *,
    tokens: int | None = None,
    rows: int | None = None,
    ratio: float | None = None,
    order: Integers | None = None,
) -> list[Integers]:
    """Batches of items of similar length, each as large as the limits allow.

    Args:
        lengths: (items,) of each item.
        tokens: most positions of a batch, padding included; one item may have more.
        rows: most items of a batch.
        ratio: of the longest item of a batch to its first, which is the shortest, at most.
        order: (items,) their numbers, those of similar length together [default: the shortest first].

    Returns:
        The numbers of the items of each batch.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(lengths, kind="stable") if order is None else order
    return np.split(order, batch_ends(lengths[order], tokens=tokens, rows=rows, ratio=ratio)[:-1]) if len(order) else []


def batch_ends(
    lengths: Integers, *, tokens: int | None = None, rows: int | None = None, ratio: float | None = None
) -> Integers:
    """(batches,) where batches of neighbours end: each takes items until the next exceeds a limit of `length_batches`.

    Args:
        lengths: (items,) in the order of the batches; ascending if there is a `ratio`.
        tokens: see `length_batches`.
        rows: see `length_batches`.
        ratio: see `length_batches`.
    """
    ends, start = [0], 0
    while start < len(lengths):
        stop = len(lengths) if rows is None else min(len(lengths), start + rows)
        if ratio is not None:
            stop = min(stop, int(np.searchsorted(lengths, ratio * lengths[start], side="right")))
        if tokens is not None:
            if lengths[start]:
                stop = min(stop, start + max(1, tokens // int(lengths[start])))
            padded = np.maximum.accumulate(lengths[start:stop]) * np.arange(1, stop - start + 1)
            stop = start + max(1, int(np.searchsorted(padded, tokens, side="right")))
        ends.append(stop)
        start = stop
    return np.array(ends[1:], dtype=np.int64)
