"""A batch falls into parts that hold it all."""

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.training import TrainingConfig
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch, batch_rows
from lm.data.pairs import PairLayout

N = IGNORE_INDEX


def test_of_rows_the_last_tokens_are_predicted_from_those_before():
    batch = Batch.from_rows([np.array([1, 2, 3, 4]), np.array([5, 6]), [7]], [2, 1, 0])
    assert batch.inputs.tolist() == [[1, 2, 3], [5, 0, 0], [0, 0, 0]]
    assert batch.targets.tolist() == [[N, 3, 4], [6, N, N], [N, N, N]]
    assert (batch.source, batch.source_lengths, batch.n_targets) == (None, None, 3)
    masks = [np.array([False, False, True, False]), np.array([False, True]), np.array([False])]
    assert Batch.from_rows([[1, 2, 3, 4], [5, 6], [7]], masks).targets.tolist() == [[N, 3, N], [6, N, N], [N, N, N]]


def test_lengths_leave_out_the_padding_and_no_prompt():
    batch = Batch.from_rows([np.array([1, 2, 3, 4]), np.array([5, 6]), np.array([7, 8, 9])], [2, 1, 2])
    assert batch.lengths.tolist() == [3, 1, 2]
    assert Batch.from_rows([np.array([1, 2, 3]), np.array([4, 5, 6])], [1, 2]).lengths is None
    assert Batch.from_rows([[7], [8]], [0, 0]).lengths is None


def test_smaller_and_truncated_batches_keep_padding_lengths_and_places_in_trees():
    sources = RaggedArray.from_rows([[[15, 0, 0, 2], [7, 1, 1, 2], [9, -1, -1, -1]], [[3, -1, -1, -1]]])
    batch = PairLayout().batch(sources, RaggedArray.from_rows([[13, 9], [9]]), start=8)
    small = batch.with_vocab_size(10)
    assert (small.inputs[0].tolist(), small.targets.tolist()) == ([8, 3], [[3, 9], [9, N]])
    assert small.source[0].tolist() == [[5, 0, 0, 2], [7, 1, 1, 2], [9, -1, -1, -1]]
    part = batch.truncate(rows=1, length=2)
    assert (part.source.tolist(), part.source_lengths.tolist()) == (sources.row(0)[None, :2].tolist(), [2])


@pytest.mark.parametrize(("tokens", "rows"), [(None, 7), (64, 4), (79, 4), (80, 5), (3, 1)])
def test_a_step_has_the_sequences_asked_for_or_as_many_as_its_tokens_fill(tokens, rows):
    training = TrainingConfig(batch_size=7, batch_tokens=tokens)
    assert batch_rows(RunConfig(ModelConfig(context_length=16), training=training)) == rows


@pytest.mark.parametrize("rows", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("with_source", [False, True])
def test_parts_hold_every_row_once(rows, with_source):
    ids = np.arange(15).reshape(5, 3)
    lengths = np.arange(5) if with_source else None
    batch = Batch(ids, np.where(ids % 4 == 0, IGNORE_INDEX, ids), ids + 1 if with_source else None, lengths)
    parts = list(batch.split(rows))
    assert all(part.rows <= (rows or 5) for part in parts)
    for name in ("inputs", "targets", *(("source", "source_lengths") if with_source else ())):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(joined, getattr(batch, name))
    assert sum(part.n_targets for part in parts) == batch.n_targets == 11
