"""Windows with masks: those of a language model, hidden again in each epoch, and always alike for validation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX, DataConfig
from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.config.tokenizer import MASK, TokenizerConfig
from lm.config.training import TrainingConfig
from lm.data.windows import MaskedWindowData, WindowData
from lm.errors import UsageError
from lm.tokenizer import training
from lm.training.corpus import open_data
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written

TEXT = "".join(chr(97 + place * place % 26) for place in range(2000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("masked")
    tokenizer = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=(MASK,)).tokenizer
    return prepare(written(place, TEXT), tokenizer, DataConfig(), place / "tokens").folder


def config(**training_fields) -> RunConfig:
    model = ModelConfig(vocab_size=258, context_length=16, objective="masked")
    return RunConfig(model, training=TrainingConfig(batch_size=4, **training_fields))


def opened(folder: Path, **fields) -> MaskedWindowData:
    data = open_data(folder, config(**fields))
    assert isinstance(data, MaskedWindowData)
    return data


def uncovered(batch) -> np.ndarray:
    return np.where(batch.targets == IGNORE_INDEX, batch.inputs, batch.targets)


def test_the_windows_are_those_of_a_language_model(folder):
    plain = WindowData.open(folder, config(seed=3))
    for consumed in (0, 8, 100_000):
        batch = opened(folder, seed=3).batch(consumed)
        np.testing.assert_array_equal(uncovered(batch), plain.batch(consumed).inputs)
        assert batch.tokens == 4 * 16
        assert 0 < batch.predicted < 4 * 16
        assert batch.lengths is None


def test_a_batch_follows_from_the_seed_and_the_samples_before_it(folder):
    first, again, other = opened(folder, seed=3), opened(folder, seed=3), opened(folder, seed=4)
    np.testing.assert_array_equal(first.batch(12).inputs, again.batch(12).inputs)
    assert (first.batch(12).targets != other.batch(12).targets).any()
    halves = first.batch(12, fraction=0.5), first.batch(14, fraction=0.5)
    np.testing.assert_array_equal(np.concatenate([half.targets for half in halves]), first.batch(12).targets)


def test_an_epoch_later_other_tokens_are_hidden(folder):
    data = opened(folder)
    masks = [(data.batch(4 * epoch * data.samples).targets != IGNORE_INDEX).tobytes() for epoch in range(20)]
    assert len(set(masks)) == 20


def test_validation_is_masked_the_same_for_every_seed(folder):
    one, other = (list(opened(folder, seed=seed).validation()) for seed in (1, 2))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first.inputs, second.inputs)
        np.testing.assert_array_equal(first.targets, second.targets)
    shown = np.concatenate([uncovered(batch).flatten() for batch in one])
    plain = list(WindowData.open(folder, config()).validation())
    np.testing.assert_array_equal(shown, np.concatenate([batch.inputs.flatten() for batch in plain]))


def test_the_share_is_a_setting(folder):
    for fraction in (0.1, 0.5):
        data = opened(folder, masked_share=fraction)
        predicted = sum(data.batch(first).predicted for first in range(0, 400, 4))
        assert predicted / (400 * 16) == pytest.approx(fraction, abs=0.03)


def test_tokens_without_a_mask_are_refused(tmp_path):
    without = prepare(written(tmp_path, TEXT), byte_tokenizer(), DataConfig(), tmp_path / "tokens").folder
    with pytest.raises(UsageError, match=r"no \[MASK\] token"):
        open_data(without, config())
