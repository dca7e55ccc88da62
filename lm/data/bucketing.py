"""Bucketing: batches of items of similar length, to reduce padding.

Used for pairs in training, scored examples and pairs, windows of documents, translated lines, and words in BPE dropout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` consecutive items, as `itertools.batched` of Python 3.12; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def length_batches(
    lengths: Sequence[int] | Integers,
    *,
    tokens: int | None = None,
    rows: int | None = None,
    ratio: float | None = None,
    order: Integers | None = None,
) -> list[Integers]:
    """Return batches of items of similar length, each as large as the limits allow.

    Args:
        lengths: (items,) length of each item.
        tokens: maximum positions of a batch, including padding; a single item may exceed it.
        ratio: maximum ratio of the longest to the shortest item of a batch.
        order: (items,) indices with similar lengths together [default: sorted by length].

    Returns:
        The item indices of each batch.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(lengths, kind="stable") if order is None else order
    return np.split(order, batch_ends(lengths[order], tokens=tokens, rows=rows, ratio=ratio)[:-1]) if len(order) else []


def batch_ends(
    lengths: Integers, *, tokens: int | None = None, rows: int | None = None, ratio: float | None = None
) -> Integers:
    """Return (batches,) where batches of consecutive items end, within the limits of `length_batches`.

    Args:
        lengths: (items,) in batch order; ascending if there is a `ratio`.
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
