"""Batches of similar lengths are within their limits, none could take the next item, and each item is in one."""

import itertools

import numpy as np
import pytest

from lm.data.bucketing import batch_ends, length_batches

LENGTHS = np.random.default_rng(0).integers(0, 50, size=300)


@pytest.mark.parametrize("tokens", [None, 1, 60, 1000])
@pytest.mark.parametrize("rows", [None, 1, 7])
@pytest.mark.parametrize("ratio", [None, 1.0, 1.25])
def test_batches_are_as_large_as_the_limits_allow(tokens, rows, ratio):
    batches = length_batches(LENGTHS, tokens=tokens, rows=rows, ratio=ratio)

    def is_allowed(lengths: np.ndarray) -> bool:
        return (
            (tokens is None or len(lengths) * lengths.max() <= tokens)
            and (rows is None or len(lengths) <= rows)
            and (ratio is None or lengths.max() <= ratio * lengths.min())
        )

    found = [LENGTHS[batch] for batch in batches]
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
    assert (np.diff(np.concatenate(found)) >= 0).all()
    assert all(is_allowed(batch) or len(batch) == 1 for batch in found)
    assert not any(is_allowed(np.append(batch, after[0])) for batch, after in itertools.pairwise(found))


def test_items_of_the_same_length_keep_their_order():
    (batch,) = length_batches([2, 1, 2, 1, 2])
    assert batch.tolist() == [1, 3, 0, 2, 4]


def test_the_order_may_be_another():
    """Longest first, nine positions: 4 and 3 are eight if padded, and a third item would make twelve."""
    lengths = np.array([2, 4, 2, 3, 9])
    order = np.argsort(-lengths, kind="stable")
    assert [batch.tolist() for batch in length_batches(lengths, tokens=9, order=order)] == [[4], [1, 3], [0, 2]]
    assert batch_ends(lengths, tokens=9).tolist() == [2, 4, 5]


def test_no_items_make_no_batches():
    assert length_batches([], tokens=8) == []
    assert batch_ends(np.array([], dtype=np.int64), rows=2).tolist() == []
