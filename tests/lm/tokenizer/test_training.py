"""What a tokenizer is trained on, and what it can be trained with."""

import random

import numpy as np
import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError, UsageError
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from lm.tokenizer.training import check_settings

TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n" * 20


def train(text: str = TEXT, kind: str = "bpe", **settings: object) -> Tokenizer:
    config_fields = {key: settings.pop(key) for key in ("vocab_size", "min_frequency") if key in settings}
    config = TokenizerConfig(kind=kind, **config_fields)  # type: ignore[arg-type]
    return training.train([text], config, corpus_bytes=len(text.encode()), **settings).tokenizer  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_training_twice_gives_the_same_bytes(kind):
    text = "".join(random.Random(3).choices("abcdefgh ", k=20_000))
    assert train(text, kind).sha256 == train(text, kind).sha256


def test_bpe_has_the_asked_size_and_specials_first():
    tokenizer = train(vocab_size=300, special_tokens=["<|user|>", "<|endoftext|>"])
    assert tokenizer.vocab_size == 300
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<|user|>": 1}
    assert tokenizer.start_of_text == tokenizer.end_of_text == 0


def test_min_frequency_limits_merges():
    assert (
        train("abab cdcd cdcd cdcd", min_frequency=2).vocab_size
        > train("abab cdcd cdcd cdcd", min_frequency=4).vocab_size
    )


class TestSampling:
    def test_a_sample_stays_under_its_limit_and_covers_the_corpus(self):
        texts = [f"{number:03d}" + "x" * 97 for number in range(1000)]
        sample = training.TextSample(texts, corpus_bytes=100_000, limit=10_000)
        taken = [int(text[:3]) for text in sample]
        assert sample.used == 10_000
        assert max(np.diff([-1, *taken, 1000])) <= 20

    def test_training_says_what_it_used(self):
        texts = [TEXT] * 10
        total = sum(map(len, texts))
        trained = training.train(texts, TokenizerConfig(vocab_size=300), corpus_bytes=total, sample_bytes=total // 2)
        assert (trained.sample_bytes, trained.corpus_bytes) == (total // 2, total)

    def test_everything_is_used_where_it_fits(self):
        trained = training.train([TEXT], TokenizerConfig(vocab_size=300), corpus_bytes=len(TEXT))
        assert trained.sample_bytes == trained.corpus_bytes == len(TEXT)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kind": "bpe", "unknown": "?"}, ["unknown", "kind=char"]),
        ({"kind": "char", "unknown": "??"}, ["unknown"]),
        ({"kind": "char", "special_tokens": [""]}, ["special"]),
        ({"kind": "bpe", "vocab_size": 257, "special_tokens": ["<a>"]}, ["vocab_size"]),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, named):
    with pytest.raises(UsageError) as caught:
        train(TEXT, **settings)  # type: ignore[arg-type]
    assert caught.value.settings == tuple(named)


def test_no_text_is_an_error():
    with pytest.raises(InputError, match="no text"):
        train("")


@pytest.mark.parametrize(
    ("special", "least"), [(["<a>"], 258), (["<a>", "<a>", "<|endoftext|>"], 258), (["<a>", "<b>"], 259)]
)
def test_a_vocabulary_has_room_for_bytes_and_special_tokens_at_least(special, least):
    check_settings(TokenizerConfig(kind="bpe", vocab_size=least), special_tokens=special)
    with pytest.raises(UsageError, match=f"vocab_size {least - 1} is too small: bytes and special tokens take {least}"):
        check_settings(TokenizerConfig(kind="bpe", vocab_size=least - 1), special_tokens=special)
    for kind in ("byte", "char"):
        check_settings(TokenizerConfig(kind=kind, vocab_size=least - 1), special_tokens=special)


def test_only_characters_may_be_unknown():
    check_settings(TokenizerConfig(kind="char"), unknown="?")
    for kind in ("bpe", "byte"):
        with pytest.raises(UsageError, match="only those of characters have unknown ones"):
            check_settings(TokenizerConfig(kind=kind), unknown="?")
    for unknown in ("", "??"):
        with pytest.raises(UsageError, match="must be one character"):
            check_settings(TokenizerConfig(kind="char"), unknown=unknown)
    with pytest.raises(UsageError, match="cannot be empty"):
        check_settings(TokenizerConfig(kind="char"), special_tokens=[""])
    with pytest.raises(UsageError, match="unknown ones.*UTF-8"):
        check_settings(TokenizerConfig(kind="char"), unknown="\udcff")
