import numpy as np

from lm.corpus.ragged import RaggedArray, concatenate_ranges

ROWS = [[5, 6], [], [7], [8, 9, 10]]


def listed(ragged: RaggedArray) -> list[list[int]]:
    return [ragged.row(number).tolist() for number in range(len(ragged))]


def test_rows_are_taken_joined_and_grouped():
    ragged = RaggedArray.from_rows(ROWS)
    assert listed(ragged) == ROWS
    assert ragged.lengths().tolist() == [2, 0, 1, 3]
    assert listed(ragged.take(np.array([3, 0, 0, 1]))) == [ROWS[3], ROWS[0], ROWS[0], ROWS[1]]
    assert listed(RaggedArray.concatenate([ragged, ragged])) == ROWS * 2
    assert listed(ragged.merge_rows(np.array([2, 2, 4]))) == [[5, 6], [], [7, 8, 9, 10]]
    assert listed(ragged.merge_rows(np.array([0, 4]))) == [[], [5, 6, 7, 8, 9, 10]]


def test_rows_are_framed_and_padded():
    ragged = RaggedArray.from_rows(ROWS)
    assert listed(ragged.wrap_rows([1, 2], [3])) == [[1, 2, *row, 3] for row in ROWS]
    assert ragged.to_padded(-1).tolist() == [[5, 6, -1], [-1, -1, -1], [7, -1, -1], [8, 9, 10]]


def test_nothing_is_rows_too():
    empty = RaggedArray.from_rows([])
    assert len(empty) == 0
    assert listed(RaggedArray.concatenate([])) == listed(empty.wrap_rows([1], [2])) == []
    assert empty.take(np.array([], dtype=np.int64)).to_padded(0).shape == (0, 0)
    assert concatenate_ranges(np.array([3, 9]), np.array([2, 0])).tolist() == [3, 4]


def test_lists_and_arrays_make_the_same_rows():
    given = [[5, 6], [], [7]]
    made = RaggedArray.from_rows([np.array(row, dtype=np.uint16) for row in given])
    assert made.values.dtype == np.int64
    assert (made.values.tolist(), made.ends.tolist()) == ([5, 6, 7], [2, 2, 3])
    assert RaggedArray.from_rows(given).values.tolist() == made.values.tolist()


def test_rows_of_nothing_are_padded_to_nothing():
    assert RaggedArray.from_rows([[], []]).to_padded(0).shape == (2, 0)


def test_a_place_may_hold_several_integers():
    rows = [np.arange(6).reshape(3, 2), np.zeros((0, 2), dtype=np.int64), np.array([[8, 9]])]
    ragged = RaggedArray.from_rows(rows)
    assert listed(ragged) == [row.tolist() for row in rows]
    assert listed(RaggedArray.concatenate([ragged, ragged]).take(np.array([3, 2]))) == [
        rows[0].tolist(),
        rows[2].tolist(),
    ]
    assert listed(ragged.merge_rows(np.array([3]))) == [[*rows[0].tolist(), [8, 9]]]
    assert listed(ragged.wrap_rows([[1, 1]], [[2, 2]]))[2] == [[1, 1], [8, 9], [2, 2]]
    assert ragged.to_padded(-1).shape == (3, 3, 2)
    assert ragged.to_padded(-1)[2].tolist() == [[8, 9], [-1, -1], [-1, -1]]
