"""Masks: the fractions of the paper, whole words, and the same for the same key."""

from __future__ import annotations

import numpy as np
import pytest

from lm.config.data import IGNORE_INDEX
from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.data.masking import Masking, sample_keys
from lm.errors import UsageError
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer

TEXT = "the owl saw the fox, and the fox ran home by the mill. " * 20


def tokenizer(kind: str = "byte", special: tuple[str, ...] = (END_OF_TEXT, MASK)) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=280)
    return training.train([TEXT], config, corpus_bytes=len(TEXT), special_tokens=special).tokenizer


BYTES = tokenizer()


def rows(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(256, size=(count, length))


@pytest.mark.parametrize("fraction", [0.15, 0.4])
def test_shares_are_those_of_the_paper(fraction):
    """Within five standard errors, of 200,000 tokens."""
    tokens = rows(400, 500)
    batch = Masking.from_tokenizer(BYTES, fraction=fraction).batch(
        tokens, keys=sample_keys(1, np.arange(400, dtype=np.uint64))
    )
    chosen = batch.targets != IGNORE_INDEX
    number = chosen.sum()
    assert abs(chosen.mean() - fraction) < 5 * (fraction * (1 - fraction) / tokens.size) ** 0.5
    masked = (batch.inputs == BYTES.mask) & chosen
    kept = (batch.inputs == tokens) & chosen
    assert abs(masked.sum() / number - 0.8) < 5 * (0.16 / number) ** 0.5
    assert abs(kept.sum() / number - 0.1 - 0.1 / 256) < 5 * (0.09 / number) ** 0.5
    np.testing.assert_array_equal(batch.targets[chosen], tokens[chosen])
    np.testing.assert_array_equal(batch.inputs[~chosen], tokens[~chosen])


def test_what_replaces_a_token_is_any_token_that_is_not_special():
    tokens = np.zeros((300, 300), dtype=np.int64)
    batch = Masking.from_tokenizer(BYTES, fraction=0.5).batch(
        tokens, keys=sample_keys(1, np.arange(300, dtype=np.uint64))
    )
    others = batch.inputs[(batch.inputs != 0) & (batch.inputs != BYTES.mask)]
    counts = np.bincount(others, minlength=258)
    assert not counts[256:].any()
    assert counts[1:256].min() > 0


def test_masks_follow_from_the_key_of_their_row_alone():
    tokens, masking = rows(6, 40), Masking.from_tokenizer(BYTES, fraction=0.15)
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
    batch = Masking.from_tokenizer(BYTES, fraction=0.001).batch(
        tokens, keys=sample_keys(1, np.arange(50, dtype=np.uint64))
    )
    chosen = batch.targets != IGNORE_INDEX
    np.testing.assert_array_equal(chosen[:25], np.arange(4) == np.full((25, 1), 2))
    assert (chosen[25:].sum(axis=1) == 1).all()  # there is nothing else to learn from such a row


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_whole_words_are_hidden_or_not(kind):
    """Each word of a text, spaces apart, is chosen with all of its tokens or none."""
    words = tokenizer(kind)
    ids = np.array(words.encode(TEXT))[None].repeat(40, axis=0)
    masking = Masking.from_tokenizer(words, fraction=0.15, whole_words=True)
    chosen = masking.batch(ids, keys=sample_keys(1, np.arange(40, dtype=np.uint64))).targets != IGNORE_INDEX
    spelled = [words.token_bytes(index).decode() for index in ids[0]]
    start, partly = 0, 0
    for place in range(1, len(spelled) + 1):
        if place == len(spelled) or not (spelled[place][0].isalpha() and spelled[place - 1][-1].isalpha()):
            of_word = chosen[:, start:place]
            partly += int((of_word.any(axis=1) & ~of_word.all(axis=1)).sum())
            start = place
    assert partly == 0
    assert abs(chosen.mean() - 0.15) < 0.02


def test_a_tokenizer_without_a_mask_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match=r"no \[MASK\] token"):
        Masking.from_tokenizer(tokenizer(special=()), fraction=0.15)
