"""Masks: the fractions of the paper, drawn again in each epoch, and the same for the same key."""

from pathlib import Path

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX, DataConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.config.training import TrainingConfig
from lm.corpus.store import open_split
from lm.data.batch import TrainingData
from lm.data.windows import Masking, Windows
from lm.pseudorandom import Indices, hash64
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.training_corpus import open_data
from tests.lm.corpus.preparing import prepare, written

TEXT = "the owl saw the fox, and the fox ran home by the mill. " * 20


def tokenizer(kind: str = "byte", special: tuple[str, ...] = (END_OF_TEXT, MASK)) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=280)
    return training.train([TEXT], config, corpus_bytes=len(TEXT), special_tokens=special)


BYTES = tokenizer()


def sample_keys(seed: int, samples: Indices) -> Indices:
    return hash64(hash64(np.array([seed], dtype=np.uint64)) ^ samples)


def rows(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(256, size=(count, length))


@pytest.mark.parametrize("fraction", [0.15, 0.4])
def test_shares_are_those_of_the_paper(fraction):
    """Within five standard errors, of 200,000 tokens."""
    tokens = rows(400, 500)
    batch = Masking(BYTES, fraction=fraction).batch(tokens, keys=sample_keys(1, np.arange(400, dtype=np.uint64)))
    chosen = batch.targets != IGNORE_INDEX
    number = chosen.sum()
    assert abs(chosen.mean() - fraction) < 5 * (fraction * (1 - fraction) / tokens.size) ** 0.5
    masked = (batch.inputs == BYTES.mask) & chosen
    kept = (batch.inputs == tokens) & chosen
    assert abs(masked.sum() / number - 0.8) < 5 * (0.16 / number) ** 0.5
    assert abs(kept.sum() / number - 0.1 - 0.1 / 256) < 5 * (0.09 / number) ** 0.5
    np.testing.assert_array_equal(batch.targets[chosen], tokens[chosen])
    np.testing.assert_array_equal(batch.inputs[~chosen], tokens[~chosen])


def test_masks_follow_from_the_key_of_their_row_alone():
    tokens, masking = rows(6, 40), Masking(BYTES, fraction=0.15)
    keys = sample_keys(7, np.arange(6, dtype=np.uint64))
    together = masking.batch(tokens, keys=keys)
    for row in range(6):
        alone = masking.batch(tokens[row : row + 1], keys=keys[row : row + 1])
        np.testing.assert_array_equal(alone.inputs[0], together.inputs[row])
    other_seed = masking.batch(tokens, keys=sample_keys(8, np.arange(6, dtype=np.uint64)))
    other_epoch = masking.batch(tokens, keys=sample_keys(7, np.arange(6, 12, dtype=np.uint64)))
    for other in (other_seed, other_epoch):
        assert (other.targets != together.targets).any(axis=1).all()


def test_special_tokens_are_never_chosen_but_each_row_has_a_target():
    tokens = np.full((50, 4), BYTES.end_of_text)
    tokens[:25, 2] = 7
    batch = Masking(BYTES, fraction=0.001).batch(tokens, keys=sample_keys(1, np.arange(50, dtype=np.uint64)))
    chosen = batch.targets != IGNORE_INDEX
    np.testing.assert_array_equal(chosen[:25], np.arange(4) == np.full((25, 1), 2))
    assert (chosen[25:].sum(axis=1) == 1).all()  # there is nothing else to learn from such a row


WINDOWED = "".join(chr(97 + place * place % 26) for place in range(2000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("masked")
    tokenizer = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=(MASK,))
    return prepare(written(place, WINDOWED), tokenizer, DataConfig(), place / "tokens").folder


def config(**training_fields) -> RunConfig:
    model = ModelConfig(vocab_size=258, context_length=16, objective="masked")
    return RunConfig(model, training=TrainingConfig(batch_size=4, **training_fields))


def opened(folder: Path, **fields) -> TrainingData:
    return open_data(folder, config(**fields))


def plain(folder: Path, seed: int) -> Windows:
    splits = (open_split(folder, split) for split in ("train", "validation"))
    return Windows(*splits, context=16, rows=4, seed=seed)


def uncovered(batch) -> np.ndarray:
    return np.where(batch.targets == IGNORE_INDEX, batch.inputs, batch.targets)


def test_the_windows_are_those_of_a_language_model(folder):
    for consumed in (0, 8, 100_000):
        batch = opened(folder, seed=3).batch(consumed)
        np.testing.assert_array_equal(uncovered(batch), plain(folder, 3).batch(consumed).inputs)
        assert batch.tokens == 4 * 16
        assert 0 < batch.n_targets < 4 * 16
        assert batch.lengths is None


def test_a_batch_follows_from_the_seed_and_the_samples_before_it(folder):
    first, again, other = opened(folder, seed=3), opened(folder, seed=3), opened(folder, seed=4)
    np.testing.assert_array_equal(first.batch(12).inputs, again.batch(12).inputs)
    assert (first.batch(12).targets != other.batch(12).targets).any()
    assert (first.batch(12).targets != first.batch(12 + 4 * first.samples).targets).any()


def test_validation_is_masked_the_same_for_every_seed(folder):
    one, other = (list(opened(folder, seed=seed).validation()) for seed in (1, 2))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first.inputs, second.inputs)
        np.testing.assert_array_equal(first.targets, second.targets)
    shown = np.concatenate([uncovered(batch).flatten() for batch in one])
    expected = [batch.inputs.flatten() for batch in plain(folder, 1).validation()]
    np.testing.assert_array_equal(shown, np.concatenate(expected))
