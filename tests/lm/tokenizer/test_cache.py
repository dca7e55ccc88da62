"""A tokenizer is trained once for the same text and settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError, UsageError
from lm.tokenizer import training
from lm.tokenizer.training import load_or_train

TEXT = "to be or not to be " * 20
BPE = TokenizerConfig(vocab_size=270)


class Texts:
    """Texts that count how often they are read."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self) -> Iterator[str]:
        self.read += 1
        yield TEXT


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LM_CACHE", str(tmp_path))
    return tmp_path / "tokenizers"


def test_texts_are_read_once_for_the_same_settings(cache):
    texts = Texts()
    first, again = (load_or_train(texts, BPE, identity=["a"], corpus_bytes=len(TEXT)) for _ in range(2))
    assert first.sha256 == again.sha256
    assert texts.read == 1
    assert len(list(cache.glob("*.json"))) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"identity": ["b"]},
        {"config": TokenizerConfig(vocab_size=271)},
        {"config": TokenizerConfig(kind="char")},
        {"special_tokens": ["<2de>"]},
    ],
)
def test_other_text_or_settings_are_another_tokenizer(other):
    texts = Texts()
    given = {"config": BPE, "identity": ["a"], "corpus_bytes": len(TEXT)}
    for chosen in (given, {**given, **other}):
        load_or_train(texts, **chosen)
    assert texts.read == 2


def test_a_damaged_file_is_made_again(cache):
    texts = Texts()
    first = load_or_train(texts, BPE, identity=["a"], corpus_bytes=len(TEXT))
    next(cache.glob("*.json")).write_text("{")
    assert load_or_train(texts, BPE, identity=["a"], corpus_bytes=len(TEXT)).sha256 == first.sha256
    assert texts.read == 2


def test_a_file_that_is_another_tokenizer_is_made_again(cache, caplog):
    texts = Texts()
    first = load_or_train(texts, BPE, identity=["a"], corpus_bytes=len(TEXT))
    path = next(cache.glob("*.json"))
    training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer.save(path)
    assert not caplog.records
    for _ in range(2):
        assert load_or_train(texts, BPE, identity=["a"], corpus_bytes=len(TEXT)).sha256 == first.sha256
    assert texts.read == 2
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path}: damaged")


def test_settings_are_checked_before_any_text_is_read():
    texts = Texts()
    with pytest.raises(UsageError, match="vocab_size must be at least 257"):
        load_or_train(texts, TokenizerConfig(vocab_size=10), identity=["a"], corpus_bytes=len(TEXT))
    assert texts.read == 0


def test_no_text_is_read_where_no_tokenizer_can_be_kept(tmp_path, monkeypatch):
    texts, file = Texts(), tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("LM_CACHE", str(file))
    with pytest.raises(InputError, match=r"file: is a file, not a folder; choose another place \(LM_CACHE\)$"):
        load_or_train(texts, BPE, identity=["a"], corpus_bytes=len(TEXT))
    assert not texts.read
