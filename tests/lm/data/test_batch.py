"""A batch falls into parts that hold it all."""

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, RunPlan
from lm.config.training import TrainingConfig
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch, batch_rows, micro_batch_rows

N = IGNORE_INDEX


def test_of_rows_the_last_tokens_are_predicted_from_those_before():
    batch = Batch.from_rows([np.array([1, 2, 3, 4]), np.array([5, 6]), [7]], [2, 1, 0])
    assert batch.inputs.tolist() == [[1, 2, 3], [5, 0, 0], [0, 0, 0]]
    assert batch.targets.tolist() == [[N, 3, 4], [6, N, N], [N, N, N]]
    assert (batch.source, batch.source_lengths, batch.n_targets) == (None, None, 3)


def test_of_pairs_in_one_sequence_the_target_is_predicted_after_source_and_start():
    sources = RaggedArray.from_rows([[1, 2], [3], [4, 5, 6]])
    targets = RaggedArray.from_rows([[7, 8], [9], [10]])
    batch = Batch.from_pair_sequences(sources, targets, start=11, learns_source=True)
    assert batch.inputs.tolist() == [[1, 2, 11, 7], [3, 11, 0, 0], [4, 5, 6, 11]]
    assert batch.targets.tolist() == [[N, N, 7, 8], [N, 9, N, N], [N, N, N, 10]]
    assert batch.source_targets.tolist() == [[2, N, N, N], [N, N, N, N], [5, 6, N, N]]


def test_lengths_leave_out_the_padding_and_no_prompt():
    batch = Batch.from_rows([np.array([1, 2, 3, 4]), np.array([5, 6]), np.array([7, 8, 9])], [2, 1, 2])
    assert batch.lengths.tolist() == [3, 1, 2]
    assert Batch.from_rows([np.array([1, 2, 3]), np.array([4, 5, 6])], [1, 2]).lengths is None
    assert Batch.from_rows([[7], [8]], [0, 0]).lengths is None


def test_of_rows_of_a_single_token_nothing_is_predicted():
    batch = Batch.from_rows([[7], [8]], [0, 0])
    assert batch.inputs.shape == batch.targets.shape == (2, 0)


def test_of_pairs_every_token_of_a_target_is_predicted_from_its_source_and_those_before():
    batch = Batch.from_pairs(
        RaggedArray.from_rows([[1, 2, 9], [9]]), RaggedArray.from_rows([[3, 9], [4, 5, 9]]), start=8
    )
    assert batch.inputs.tolist()[1] == [8, 4, 5]
    assert batch.inputs.tolist()[0][:2] == [8, 3]
    assert batch.targets.tolist() == [[3, 9, N], [4, 5, 9]]
    assert batch.source.tolist() == [[1, 2, 9], [9, 0, 0]]
    assert batch.source_lengths.tolist() == [3, 1]


def test_within_a_smaller_vocabulary_all_else_stays():
    batch = Batch.from_pairs(
        RaggedArray.from_rows([[1, 12, 9], [9]]), RaggedArray.from_rows([[13, 9], [4, 25, 9]]), start=8
    )
    small = batch.with_vocab_size(10)
    assert small.inputs.tolist() == [[8, 3, *batch.inputs.tolist()[0][2:]], [8, 4, 5]]
    assert small.targets.tolist() == [[3, 9, N], [4, 5, 9]]
    assert small.source.tolist() == [[1, 2, 9], [9, 0, 0]]
    assert small.n_targets == batch.n_targets == 5


def test_places_in_trees_stay_beside_the_ids_that_they_are_of():
    sources = [[[15, 0, 0, 2], [7, 1, 1, 2], [9, -1, -1, -1]], [[3, -1, -1, -1]]]
    batch = Batch.from_pairs(RaggedArray.from_rows(sources), RaggedArray.from_rows([[3, 9], [9]]), start=8)
    assert batch.source.shape == (2, 3, 4)
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.with_vocab_size(10).source[0].tolist() == [[5, 0, 0, 2], [7, 1, 1, 2], [9, -1, -1, -1]]
    part = batch.truncate(rows=1, length=2)
    assert part.source.tolist() == [sources[0][:2]]
    assert part.source_lengths.tolist() == [2]


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


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("shape", [(480, 32), (7, 5), (1, 40)])
@pytest.mark.parametrize("tokens", [1, 33, 100, 10**6])
def test_passes_that_fit_are_as_few_as_possible_and_equal(tokens, shape, processes):
    plan = RunPlan("cuda", "bfloat16", 1, 9, "data", "key", processes=processes, micro_batch_tokens=tokens)
    batch = Batch(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
    rows, here = micro_batch_rows(RunConfig(plan=plan), batch), -(-shape[0] // processes)
    most = max(1, tokens // shape[1])  # a sequence is never parted
    assert rows <= most
    assert -(-here // rows) == -(-here // most)
    assert (-(-here // rows)) * rows - here < -(-here // rows)  # passes differ by a sequence at most


def test_what_is_asked_for_goes_before_what_fits():
    ids = np.zeros((9, 4), dtype=np.int64)
    pairs = Batch(ids, ids, source=np.zeros((9, 8), dtype=np.int64), source_lengths=np.full(9, 8))
    plan = RunPlan("cuda", "bfloat16", 1, 9, "data", "key", micro_batch_tokens=24)
    assert micro_batch_rows(RunConfig(plan=plan), pairs) == 3  # by the longer side
    assert micro_batch_rows(RunConfig(training=TrainingConfig(micro_batch_size=5), plan=plan), pairs) == 5
    assert micro_batch_rows(RunConfig(), pairs) is None
