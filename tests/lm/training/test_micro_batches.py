"""The rows of a batch that each of several processes takes: together all of them, once, in as many passes each."""

import itertools

import numpy as np
import pytest

from lm.data import Batch
from lm.training.parallel import World


def batch(rows: int) -> Batch:
    ids = np.arange(rows * 3).reshape(rows, 3)
    return Batch(ids, ids + 1, source_lengths=np.arange(rows))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_row_is_taken_once_and_all_make_as_many_passes(size):
    for rows, at_once in itertools.product((1, 2, 3, 7, 8), (None, 1, 2, 5)):
        whole = batch(rows)
        taken = [list(World(rank, size).micro_batches(whole, rows=at_once)) for rank in range(size)]
        assert len({len(of_rank) for of_rank in taken}) == 1
        counted = [micro_batch.batch for of_rank in taken for micro_batch in of_rank if micro_batch.is_real]
        assert np.array_equal(np.concatenate([part.inputs for part in counted]), whole.inputs)
        assert np.array_equal(np.concatenate([part.source_lengths for part in counted]), whole.source_lengths)
        assert all(part.rows <= (at_once or rows) for part in counted)
        for of_rank in taken:
            assert [micro_batch.is_last for micro_batch in of_rank] == [False] * (len(of_rank) - 1) + [True]
            assert all(micro_batch.batch.rows == 1 for micro_batch in of_rank if not micro_batch.is_real)
