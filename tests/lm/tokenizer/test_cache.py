"""A tokenizer is trained once for the same text and settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lm.config.tokenizer import TokenizerConfig
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
