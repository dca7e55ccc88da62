"""Batches of similar lengths are within their limits, none could take the next item, and each item is in one."""

import itertools

import numpy as np
import pytest

from lm.corpus.ragged import RaggedArray
from lm.data.bucketing import batch_ends, length_batches
from lm.data.pair_batches import EncoderDecoderLayout, PairBatches, bucket_pairs

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


START = 1000


def rows(lengths: list[int], first: int = 0) -> RaggedArray:
    """Rows of so many ids, each row of one id that is its own."""
    return RaggedArray.from_rows([[first + number] * length for number, length in enumerate(lengths)])


def made(*, tokens: int | None = None, most: int | None = None, count: int = 40) -> PairBatches:
    chance = np.random.default_rng(1)
    lengths = chance.integers(1, 30, size=(2, count)).tolist()
    return bucket_pairs(rows(lengths[0]), rows(lengths[1]), tokens=tokens, rows=most, layout=EncoderDecoderLayout())


def test_batches_are_as_large_as_the_tokens_allow_computed_by_hand():
    """Eight positions a side: 2, 2, 3 are nine if padded, and one that is longer than all has a batch of its own."""
    found = bucket_pairs(
        rows([2, 9, 2, 3, 1]), rows([1, 9, 2, 3, 4]), tokens=8, rows=None, layout=EncoderDecoderLayout()
    )
    assert [found.batch(first, START).targets.shape for first in found.firsts] == [(2, 2), (2, 4), (1, 9)]
    assert found.ends.tolist() == [2, 4, 5]
    assert found.firsts == [0, 2, 4]


@pytest.mark.parametrize(("tokens", "most"), [(60, None), (None, 3), (60, 3), (1, None)])
def test_each_pair_is_in_one_batch_and_its_sides_stay_together(tokens, most):
    found, seen = made(tokens=tokens, most=most), []
    for first in found.firsts:
        batch = found.batch(first, START)
        assert batch.source is not None
        assert (batch.inputs[:, 0] == START).all()
        assert (batch.source[:, 0] == batch.targets[:, 0]).all()
        assert most is None or batch.rows <= most
        assert tokens is None or batch.rows == 1 or max(batch.source.size, batch.targets.size) <= tokens
        seen += batch.targets[:, 0].tolist()
    assert sorted(seen) == list(range(40))


def test_a_permutation_moves_whole_batches():
    found = made(tokens=60)
    permuted = found.permuted(np.array([7], dtype=np.uint64))
    shapes, others = (
        [each.batch(first, START).targets.tolist() for first in each.firsts] for each in (found, permuted)
    )
    assert shapes != others
    assert sorted(shapes) == sorted(others)
    again = found.permuted(np.array([7], dtype=np.uint64))
    assert again.ends.tolist() == permuted.ends.tolist()


def test_no_pairs_make_no_batches():
    found = bucket_pairs(
        RaggedArray.from_rows([]), RaggedArray.from_rows([]), tokens=8, rows=None, layout=EncoderDecoderLayout()
    )
    assert (len(found), found.firsts) == (0, [])
