"""Pairs of similar length stand together, each once, in batches within the limits."""

from __future__ import annotations

import numpy as np
import pytest

from lm.corpus.ragged import RaggedArray
from lm.data.pair_batches import EncoderDecoderLayout, PairBatches, bucket_pairs

START = 1000


def rows(lengths: list[int], first: int = 0) -> RaggedArray:
    """Rows of so many ids, each row of one id that is its own."""
    return RaggedArray.from_rows([[first + number] * length for number, length in enumerate(lengths)])


def made(*, tokens: int | None = None, most: int | None = None, count: int = 40) -> PairBatches:
    chance = np.random.default_rng(1)
    lengths = chance.integers(1, 30, size=(2, count)).tolist()
    return bucket_pairs(rows(lengths[0]), rows(lengths[1]), tokens=tokens, rows=most, layout=EncoderDecoderLayout())


def test_batches_are_as_large_as_the_tokens_allow_worked_out_by_hand() -> None:
    """Eight positions a side: 2, 2, 3 are nine if padded, and one that is longer than all has a batch of its own."""
    found = bucket_pairs(
        rows([2, 9, 2, 3, 1]), rows([1, 9, 2, 3, 4]), tokens=8, rows=None, layout=EncoderDecoderLayout()
    )
    assert [found.batch(first, START).targets.shape for first in found.firsts] == [(2, 2), (2, 4), (1, 9)]
    assert found.ends.tolist() == [2, 4, 5]
    assert found.firsts == [0, 2, 4]


@pytest.mark.parametrize(("tokens", "most"), [(60, None), (None, 3), (60, 3), (1, None)])
def test_each_pair_is_in_one_batch_and_its_sides_stay_together(tokens: int | None, most: int | None) -> None:
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


def test_a_permutation_moves_whole_batches() -> None:
    found = made(tokens=60)
    permuted = found.permuted(np.array([7], dtype=np.uint64))
    shapes, others = (
        [each.batch(first, START).targets.tolist() for first in each.firsts] for each in (found, permuted)
    )
    assert shapes != others
    assert sorted(shapes) == sorted(others)
    again = found.permuted(np.array([7], dtype=np.uint64))
    assert again.ends.tolist() == permuted.ends.tolist()


def test_no_pairs_make_no_batches() -> None:
    found = bucket_pairs(
        RaggedArray.from_rows([]), RaggedArray.from_rows([]), tokens=8, rows=None, layout=EncoderDecoderLayout()
    )
    assert (len(found), found.firsts) == (0, [])
