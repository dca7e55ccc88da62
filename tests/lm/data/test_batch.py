"""A batch falls into parts that hold it all."""

from __future__ import annotations

import numpy as np
import pytest

from lm.config.data import IGNORED
from lm.data.batch import Batch, padded


def test_padding_fills_up_on_the_right():
    rows = padded([np.array([1, 2, 3]), np.array([4])], value=9)
    assert rows.tolist() == [[1, 2, 3], [4, 9, 9]]


@pytest.mark.parametrize("rows", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("with_source", [False, True])
def test_parts_hold_every_row_once(rows, with_source):
    ids = np.arange(15).reshape(5, 3)
    lengths = np.arange(5) if with_source else None
    batch = Batch(ids, np.where(ids % 4 == 0, IGNORED, ids), ids + 1 if with_source else None, lengths)
    parts = list(batch.split(rows))
    assert all(part.rows <= (rows or 5) for part in parts)
    for name in ("inputs", "targets", *(("source", "source_lengths") if with_source else ())):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(joined, getattr(batch, name))
    assert sum(part.predicted for part in parts) == batch.predicted == 11
