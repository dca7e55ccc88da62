"""Masks: the fractions of the paper, drawn again in each epoch, and the same for the same key."""

from pathlib import Path

import numpy as np
import pytest

from lm.config.model import ModelConfig
from lm.config.run_config import END_OF_TEXT, IGNORE_INDEX, MASK, DataConfig, RunConfig, TokenizerConfig, TrainingConfig
from lm.corpus import hash64, open_split
from lm.data import TrainingData
from lm.data.windows import Masking, Windows
from lm.tokenizer import training
from lm.training.training_corpus import open_data
from tests.lm.corpus.preparing import prepare, written

BYTES = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=(END_OF_TEXT, MASK))


def keys(count: int, seed: int = 1) -> np.ndarray:
    return hash64(hash64(np.array([seed], dtype=np.uint64)) ^ np.arange(count, dtype=np.uint64))


def rows(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(256, size=(count, length))


@pytest.mark.parametrize("fraction", [0.15, 0.4])
def test_shares_are_those_of_the_paper(fraction):
    """Within five standard errors, of 200,000 tokens."""
    tokens = rows(400, 500)
    batch = Masking(BYTES, fraction=fraction).batch(tokens, keys=keys(400))
    chosen = batch.targets != IGNORE_INDEX
    number = chosen.sum()
    assert abs(chosen.mean() - fraction) < 5 * (fraction * (1 - fraction) / tokens.size) ** 0.5
    masked, kept = (batch.inputs == BYTES.mask) & chosen, (batch.inputs == tokens) & chosen
    assert abs(masked.sum() / number - 0.8) < 5 * (0.16 / number) ** 0.5
    assert abs(kept.sum() / number - 0.1 - 0.1 / 256) < 5 * (0.09 / number) ** 0.5
    assert {*batch.inputs[chosen & ~masked].tolist()} == {*range(256)}
    np.testing.assert_array_equal(np.where(chosen, batch.targets, batch.inputs), tokens)


def test_special_tokens_are_never_chosen_but_each_row_has_a_target():
    tokens = np.full((50, 4), BYTES.end_of_text)
    tokens[:25, 2] = 7
    chosen = Masking(BYTES, fraction=0.001).batch(tokens, keys=keys(50)).targets != IGNORE_INDEX
    np.testing.assert_array_equal(chosen[:25], np.arange(4) == np.full((25, 1), 2))
    assert (chosen[25:].sum(axis=1) == 1).all()  # there is nothing else to learn from such a row


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("masked")
    text = "".join(chr(97 + place * place % 26) for place in range(2000))
    return prepare(written(place, text), BYTES, DataConfig(), place / "tokens").folder


def opened(folder: Path, seed: int) -> TrainingData:
    model = ModelConfig(vocab_size=258, context_length=16, objective="masked")
    return open_data(folder, RunConfig(model, training=TrainingConfig(batch_size=4, seed=seed)))


def uncovered(batch) -> np.ndarray:
    return np.where(batch.targets == IGNORE_INDEX, batch.inputs, batch.targets)


def test_the_windows_are_those_of_a_language_model_with_masks_of_seed_and_sample(folder):
    plain = Windows(*(open_split(folder, name) for name in ("train", "validation")), context=16, rows=4, seed=3)
    data, other = opened(folder, 3), opened(folder, 4)
    for consumed in (0, 8, 4 * data.samples):
        batch = data.batch(consumed)
        np.testing.assert_array_equal(uncovered(batch), plain.batch(consumed).inputs)
        assert (batch.tokens, batch.lengths) == (4 * 16, None)
        assert (batch.targets != other.batch(consumed).targets).any()
    for first, second, expected in zip(data.validation(), other.validation(), plain.validation(), strict=True):
        np.testing.assert_array_equal(first.inputs, second.inputs)
        np.testing.assert_array_equal(uncovered(first), expected.inputs)
