"""The parts of a batch that one of several processes puts through its model."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from lm.data.batch import Batch


class Turn(NamedTuple):
    """One pass through the model, which all processes make at the same time.

    Attributes:
        batch: some rows.
        counts: whether they are this process's own. Where it has none left, it takes another's row along, so that it
            takes part in what processes exchange; its loss counts nothing.
        is_last: whether it is the last pass of a batch.
    """

    batch: Batch
    counts: bool
    is_last: bool


def turns(batch: Batch, *, rank: int, size: int, rows: int | None) -> Iterator[Turn]:
    """The rows of a batch that are this process's, in as many passes as every other process makes.

    Args:
        batch: of all processes; those that divide it evenly have as many rows each.
        rank: the number of this process.
        size: how many there are.
        rows: most rows of a pass; None for all at once.
    """
    begin, end = (batch.rows * number // size for number in (rank, rank + 1))
    most = -(-batch.rows // size)
    at_once = rows or most
    for start in range(0, most, at_once):
        first = begin + start
        counts = first < end
        part = slice(first, min(first + at_once, end)) if counts else slice(0, 1)
        yield Turn(batch.each(itemgetter(part)), counts, is_last=start + at_once >= most)
