"""Pairs are laid out on two sides, or as one sequence of which only the target, or the source too, is predicted."""

import dataclasses

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX
from lm.config.model import ModelConfig
from lm.corpus.ragged import RaggedArray
from lm.data.pair_batches import DecoderOnlyLayout, EncoderDecoderLayout, select_layout
from lm.data.pair_data import PairData
from lm.errors import InputError
from tests.lm.data.test_pairs import ALL, PLAIN, epoch

N, START = IGNORE_INDEX, 8
SOURCES, TARGETS = (
    RaggedArray.from_rows([[1, 2, 9], [9], [6, 7, 9]]),
    RaggedArray.from_rows([[3, 9], [4, 5, 9], [5, 9]]),
)


def test_a_sequence_is_source_start_and_target_computed_by_hand():
    batch = DecoderOnlyLayout().batch(SOURCES, TARGETS, start=START)
    assert batch.inputs.tolist() == [[1, 2, 9, 8, 3], [9, 8, 4, 5, 0], [6, 7, 9, 8, 5]]
    assert batch.targets.tolist() == [[N, N, N, 3, 9], [N, 4, 5, 9, N], [N, N, N, 5, 9]]
    assert (batch.source, batch.source_targets, batch.n_targets) == (None, None, 7)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == DecoderOnlyLayout().lengths(SOURCES, TARGETS).tolist() == [5, 4, 5]


def test_of_a_source_all_but_the_first_token_are_predicted_and_not_the_start_of_the_target():
    layout = DecoderOnlyLayout(learns_source=True)
    batch = layout.batch(SOURCES, TARGETS, start=START)
    assert batch.source_targets is not None
    assert batch.source_targets.tolist() == [[2, 9, N, N, N], [N, N, N, N, N], [7, 9, N, N, N]]
    assert batch.targets.tolist() == layout.for_scoring.batch(SOURCES, TARGETS, start=START).targets.tolist()
    assert layout.for_scoring.batch(SOURCES, TARGETS, start=START).source_targets is None
    halves = list(batch.split(2))
    assert [half.source_targets.tolist() for half in halves if half.source_targets is not None] == [
        batch.source_targets[:2].tolist(),
        batch.source_targets[2:].tolist(),
    ]


def test_no_pairs_are_a_batch_without_rows():
    assert DecoderOnlyLayout().batch(RaggedArray.from_rows([]), RaggedArray.from_rows([]), start=START).rows == 0


def test_a_model_with_an_encoder_reads_two_sides():
    assert select_layout(ModelConfig(n_encoder_layers=1), learns_source=True) == EncoderDecoderLayout()
    assert select_layout(ModelConfig(decoder_only=True), learns_source=True) == DecoderOnlyLayout(learns_source=True)


@pytest.mark.parametrize("config", ALL)
def test_an_epoch_has_the_same_pairs_in_either_layout(stored, config):
    """Nothing but the layout differs, BPE dropout included, and no batch has more positions than it may."""
    found = []
    for layout in (EncoderDecoderLayout(), DecoderOnlyLayout()):
        given = PairData(stored, config, batch_tokens=200, seed=3, layout=layout)
        start, seen = given._start, []
        for batch in epoch(given):
            assert batch.inputs.size <= 400 or batch.rows == 1
            for row, inputs in enumerate(batch.inputs.tolist()):
                target = [index for index in batch.targets[row].tolist() if index != N]
                if batch.source is None or batch.source_lengths is None:
                    length = int((batch.targets[row] == N)[: len(inputs) - inputs.count(0)].argmin())
                    seen.append((inputs[:length], target))
                    assert inputs[length : length + len(target)] == [start, *target[:-1]]
                else:
                    seen.append((batch.source[row, : batch.source_lengths[row]].tolist(), target))
        found.append(sorted(seen))
    assert found[0] == found[1]


def test_a_pair_fits_into_learned_positions_or_is_refused(stored):
    """What BPE dropout makes too long is read as it is without."""
    plain = PairData(stored, PLAIN, rows=4, seed=3, layout=DecoderOnlyLayout())
    longest = max(batch.inputs.shape[1] for batch in [*epoch(plain), *plain.validation()])
    dropping = dataclasses.replace(PLAIN, bpe_dropout=0.9)
    data = PairData(stored, dropping, rows=4, seed=3, layout=DecoderOnlyLayout(), context=longest)
    widths = [batch.inputs.shape[1] for batch in epoch(data)]
    assert max(widths) <= longest
    free = PairData(stored, dropping, rows=4, seed=3, layout=DecoderOnlyLayout())
    assert max(batch.inputs.shape[1] for batch in epoch(free)) > longest
    with pytest.raises(InputError, match=rf"the longest pair takes {longest} tokens, more than the context of 3"):
        PairData(stored, PLAIN, rows=4, seed=3, layout=DecoderOnlyLayout(), context=3)


def test_validation_predicts_each_target_once_and_no_source(stored):
    layouts = (EncoderDecoderLayout(), DecoderOnlyLayout(learns_source=True))
    two, one = (PairData(stored, PLAIN, rows=4, seed=0, layout=layout) for layout in layouts)
    assert all(batch.source_targets is None for batch in one.validation())
    assert sum(batch.n_targets for batch in two.validation()) == sum(batch.n_targets for batch in one.validation())
    assert any(batch.source_targets is not None for batch in epoch(one))
    assert np.isclose(two.steps_per_epoch, one.steps_per_epoch)
