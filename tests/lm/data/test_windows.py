"""The order of the data is a pure function of the corpus, the seed and the samples consumed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lm.data.windows import WindowData, WindowOrder, evaluation_batches
from lm.errors import InputError


class Counting:
    """A corpus whose tokens are their own positions."""

    def __init__(self, length: int) -> None:
        self.tokens = np.arange(length, dtype=np.uint16)

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start <= stop <= len(self.tokens)
        return self.tokens[start:stop]


@pytest.mark.parametrize("tokens", [17, 32, 33, 48, 500, 511, 512, 513])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_epoch_visits_disjoint_windows_once(tokens, seed):
    order = WindowOrder(tokens=tokens, context=16, seed=seed)
    for epoch in range(3):
        starts = sorted(order.starts(epoch * order.windows, order.windows))
        assert all(later - earlier == 16 for earlier, later in itertools.pairwise(starts))
        assert starts[0] >= 0
        assert starts[-1] + 17 <= tokens


def test_every_token_is_seen_over_the_epochs():
    order, corpus = WindowOrder(tokens=500, context=16, seed=3), Counting(500)
    seen = order.batch(corpus, 0, 40 * order.windows)
    assert set(seen.ravel()) == set(range(500))


def test_the_order_depends_on_the_samples_consumed_and_not_on_how_they_are_batched():
    order, corpus = WindowOrder(tokens=5000, context=16, seed=3), Counting(5000)
    whole = order.batch(corpus, 100, 60)
    parts = [order.batch(corpus, first, count) for first, count in ((100, 1), (101, 20), (121, 39))]
    assert np.array_equal(whole, np.concatenate(parts))
    other = WindowOrder(tokens=5000, context=16, seed=4)
    assert order.starts(0, 20) != other.starts(0, 20)


@pytest.mark.parametrize("tokens", [2, 3, 16, 17, 18, 33, 100])
@pytest.mark.parametrize("rows", [1, 4])
def test_evaluation_predicts_every_token_but_the_first_once(tokens, rows):
    batches = list(evaluation_batches(Counting(tokens), context=16, rows=rows))
    assert np.array_equal(np.concatenate([batch[:, 1:].ravel() for batch in batches]), np.arange(1, tokens))
    assert all(batch.shape[0] <= rows and batch.shape[1] <= 17 for batch in batches)
    assert all(np.array_equal(batch[:, 1:], batch[:, :-1] + 1) for batch in batches)


def test_a_single_token_is_nothing_to_evaluate_on():
    """Nothing at all is held out on purpose, but one token, as of a file of one character, is no loss."""
    text, sizes = Counting(100), {"context": 8, "rows": 2, "seed": 0}
    text.bytes = 100
    for length in (0, 2):
        validation = Counting(length)
        validation.bytes = length
        assert sum(batch.predicted for batch in WindowData(text, validation, **sizes).validation()) == length // 2
    with pytest.raises(InputError, match=r"the validation split has 1 token, .* hold out more text \(--validation\)"):
        WindowData(text, Counting(1), **sizes)
