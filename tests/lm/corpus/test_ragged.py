import numpy as np
import pytest

from lm.corpus import RaggedArray

FLAT = [[5, 6], [], [7], [8, 9, 10]]
VECTORS = [[[0, 1], [2, 3], [4, 5]], [], [[6, 7]], [[8, 9]]]
"""A place may hold several integers."""


def listed(ragged):
    return [ragged.row(number).tolist() for number in range(len(ragged))]


@pytest.mark.parametrize("rows", [FLAT, VECTORS])
def test_rows_are_taken_grouped_and_framed(rows):
    shape, zero = (-1, *np.shape(rows[0])[1:]), np.zeros_like(rows[0][0]).tolist()
    found = RaggedArray.from_rows([np.array(row, dtype=np.uint16).reshape(shape) for row in rows])
    assert listed(found) == rows
    assert listed(found.take(np.array([3, 0, 0, 1]))) == [rows[3], rows[0], rows[0], rows[1]]
    assert listed(found.merge_rows(np.array([0, 2, 4]))) == [[], rows[0] + rows[1], rows[2] + rows[3]]
    assert listed(found.wrap_rows([zero, zero], [zero])) == [[zero, zero, *row, zero] for row in rows]
