"""The order of the data is a pure function of the corpus, the seed and the samples consumed."""

import itertools

import numpy as np
import pytest

from lm.data.windows import Windows
from lm.errors import InputError


class Counting:
    """A split whose tokens are their own positions."""

    bytes = 123

    def __init__(self, length: int) -> None:
        self.tokens = np.arange(length)

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start <= stop <= len(self.tokens)
        return self.tokens[start:stop]


def windows(tokens: int, *, context: int = 16, validation: int = 0, rows: int = 4, seed: int = 0) -> Windows:
    return Windows(Counting(tokens), Counting(validation), context=context, rows=rows, seed=seed)


@pytest.mark.parametrize(("tokens", "count"), [(17, 1), (47, 1), (48, 2), (64, 3), (400, 24)])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_epoch_visits_disjoint_windows_once_from_any_offset(tokens, count, seed):
    """It leaves out one window, so that the offset can be any, and every token is seen over the epochs."""
    data, seen = windows(tokens, seed=seed, rows=count), set()
    assert (data.samples, data.tokens, data.steps_per_epoch) == (count, 16 * count, 1)
    possible = range(tokens - 16 * count)
    for epoch in range(12 * len(possible)):
        batch = data.batch(epoch * count)
        visited = sorted(batch.inputs[:, 0].tolist())
        assert np.array_equal(batch.inputs, batch.inputs[:, :1] + np.arange(16))
        assert np.array_equal(batch.targets, batch.inputs + 1)
        assert all(later - earlier == 16 for earlier, later in itertools.pairwise(visited))
        seen.add(visited[0])
    assert seen == {*possible}


def test_the_order_depends_on_the_samples_consumed_and_not_on_how_they_are_batched():
    whole = windows(5000, rows=60, seed=3).batch(100).inputs
    parts = [windows(5000, rows=rows, seed=3).batch(first).inputs for first, rows in ((100, 1), (101, 20), (121, 39))]
    assert np.array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, windows(5000, rows=60, seed=4).batch(100).inputs)


@pytest.mark.parametrize("context", [16, 16_385, 8192])
@pytest.mark.parametrize("validation", [0, 2, 16, 17, 33, 50_000])
def test_evaluation_predicts_every_token_but_the_first_once(context, validation):
    data = windows(20_000, context=context, validation=validation)
    batches = list(data.validation())
    targets = [batch.targets.ravel() for batch in batches]
    assert np.array_equal(np.concatenate([[0], *targets]), np.arange(max(1, validation)))
    for batch in batches:
        assert np.array_equal(batch.inputs + 1, batch.targets)
        assert batch.rows == 1 or batch.inputs.size <= 16_384


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match="has 16 tokens, but one window takes 17"):
        windows(16)
    assert windows(17, validation=1).validation_bytes == 0
