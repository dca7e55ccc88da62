"""The order of the data is a pure function of the corpus, the seed and the samples consumed."""

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
        assert sum(batch.n_targets for batch in WindowData(text, validation, **sizes).validation()) == length // 2
    with pytest.raises(InputError, match=r"the validation split has 1 token, .* hold out more text"):
        WindowData(text, Counting(1), **sizes)


@pytest.mark.parametrize(("tokens", "windows"), [(17, 1), (32, 1), (47, 1), (48, 2), (63, 2), (64, 3), (400, 24)])
def test_an_epoch_leaves_out_one_window_so_that_its_offset_can_be_any(tokens, windows):
    order = WindowOrder(tokens=tokens, context=16, seed=0)
    assert order.windows == windows
    possible = range(tokens - 16 * windows)
    assert {min(order.starts(epoch * windows, windows)) for epoch in range(10 * len(possible))} == {*possible}


class Split(Counting):
    bytes = 123


def window_data(tokens: int, *, context: int = 16, validation: int = 0) -> WindowData:
    return WindowData(Split(tokens), Split(validation), context=context, rows=4, seed=0)


def test_one_window_takes_a_token_more_than_the_context():
    assert window_data(17).batch(0).targets.tolist() == [list(range(1, 17))] * 4
    with pytest.raises(InputError, match="has 16 tokens, but one window takes 17"):
        window_data(16)


def test_what_an_epoch_comes_to():
    data = window_data(16 * 11 + 3)
    assert (data.samples, data.tokens, data.steps_per_epoch, data.validation_bytes) == (10, 160, 2.5, 123)
    assert [data.batch(0, fraction=fraction).rows for fraction in (1.0, 0.75, 0.7, 0.25, 0.01)] == [4, 3, 3, 1, 1]


@pytest.mark.parametrize(
    ("context", "validation", "shapes"),
    [
        (16_384, 2 * 16_384 + 1, [(1, 16_384)] * 2),
        (16_385, 2 * 16_385 + 3, [(1, 16_385)] * 2 + [(1, 2)]),
        (8192, 3 * 8192 + 1, [(2, 8192), (1, 8192)]),
        (16, 2, [(1, 1)]),
        (16, 0, []),
    ],
)
def test_evaluation_takes_so_many_tokens_at_a_time_or_one_window(context, validation, shapes):
    batches = list(window_data(16_386, context=context, validation=validation).validation())
    assert [batch.targets.shape for batch in batches] == shapes
