"""Splitting a global batch over ranks and into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from lm.data.batch import Batch


class MicroBatch(NamedTuple):
    """Rows of a batch for one forward and backward pass, which all ranks make together.

    Attributes:
        is_real: False for a dummy: a rank without rows left takes one of another rank, to take part in the collectives,
            and its loss is multiplied by 0.
        is_last: whether it is the last micro-batch of its batch.
    """

    batch: Batch
    is_real: bool
    is_last: bool


def split_micro_batches(batch: Batch, *, rank: int, size: int, rows: int | None) -> Iterator[MicroBatch]:
    """Yield the micro-batches of a rank; every rank gets as many.

    Args:
        batch: the global batch; rows are divided evenly where possible.
        rows: maximum rows of a micro-batch; None for one micro-batch.
    """
    begin, end = (batch.rows * number // size for number in (rank, rank + 1))
    rows_per_rank = -(-batch.rows // size)
    rows_per_pass = rows or rows_per_rank
    for start in range(0, rows_per_rank, rows_per_pass):
        first = begin + start
        is_real = first < end
        row_slice = slice(first, min(first + rows_per_pass, end)) if is_real else slice(0, 1)
        yield MicroBatch(
            batch.map_arrays(itemgetter(row_slice)), is_real, is_last=start + rows_per_pass >= rows_per_rank
        )
