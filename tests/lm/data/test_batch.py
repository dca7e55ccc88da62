"""A batch falls into parts that hold it all; batches of similar lengths are within their limits and hold each item."""

import itertools

import numpy as np
import pytest

from lm.config.model import ModelConfig
from lm.config.run_config import IGNORE_INDEX, RunConfig, TrainingConfig
from lm.data import Batch, batch_rows, length_batches

N = IGNORE_INDEX


def test_learned_tokens_are_predicted_from_those_before():
    masks = [np.array([False, False, True, False]), np.array([False, True]), np.array([False])]
    batch = Batch.from_rows([np.array([1, 2, 3, 4]), np.array([5, 6]), np.array([7])], masks)
    assert batch.inputs.tolist() == [[1, 2, 3], [5, 0, 0], [0, 0, 0]]
    assert batch.targets.tolist() == [[N, 3, N], [6, N, N], [N, N, N]]
    assert (batch.lengths.tolist(), batch.n_targets) == ([2, 1, 0], 2)


def test_a_step_has_the_sequences_asked_for_or_as_many_as_its_tokens_fill():
    for tokens, rows in ((None, 7), (79, 4), (80, 5), (3, 1)):
        training = TrainingConfig(batch_size=7, batch_tokens=tokens)
        assert batch_rows(RunConfig(ModelConfig(context_length=16), training=training)) == rows


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_parts_hold_every_row_once(rows):
    ids = np.arange(15).reshape(5, 3)
    batch = Batch(ids, np.where(ids % 4 == 0, IGNORE_INDEX, ids), ids + 1, np.arange(5))
    parts = list(batch.split(rows))
    assert all(part.rows <= (rows or 5) for part in parts)
    for name in ("inputs", "targets", "source", "source_lengths"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(joined, getattr(batch, name))


LENGTHS = np.random.default_rng(0).integers(0, 50, size=300)


@pytest.mark.parametrize("tokens", [None, 1, 60, 1000])
@pytest.mark.parametrize("rows", [None, 1, 7])
def test_batches_are_as_large_as_the_limits_allow(tokens, rows):
    batches = length_batches(LENGTHS, tokens=tokens, rows=rows)

    def is_allowed(lengths: np.ndarray) -> bool:
        return (tokens is None or len(lengths) * lengths.max() <= tokens) and (rows is None or len(lengths) <= rows)

    found = [LENGTHS[batch] for batch in batches]
    assert np.concatenate(batches).tolist() == np.argsort(LENGTHS, kind="stable").tolist()
    assert all(is_allowed(batch) or len(batch) == 1 for batch in found)
    assert not any(is_allowed(np.append(batch, after[0])) for batch, after in itertools.pairwise(found))
    assert length_batches([], tokens=tokens, rows=rows) == []
