"""What a tokenizer is trained on, and what it can be trained with."""

import random

import pytest

from lm.config.run_config import TokenizerConfig
from lm.tokenizer import Tokenizer, training

TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n" * 20


def train(text: str = TEXT, kind: str = "bpe", **settings: object) -> Tokenizer:
    config_fields = {key: settings.pop(key) for key in ("vocab_size", "min_frequency") if key in settings}
    config = TokenizerConfig(kind=kind, **config_fields)  # type: ignore[arg-type]
    return training.train([text], config, corpus_bytes=len(text.encode()), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_training_twice_gives_the_same_bytes(kind):
    text = "".join(random.Random(3).choices("abcdefgh ", k=20_000))
    assert train(text, kind).sha256 == train(text, kind).sha256


def test_bpe_is_trained_on_a_sample_that_covers_the_corpus(monkeypatch):
    texts = [chr(ord("一") + number // 10) * 30 for number in range(1000)]
    settings = {"config": TokenizerConfig(vocab_size=600), "corpus_bytes": sum(len(text.encode()) for text in texts)}
    monkeypatch.setattr(training, "SAMPLE_BYTES", 9000)
    sampled = training.train(texts, **settings)
    assert sampled.sha256 == training.train(texts[9::10], **settings | {"corpus_bytes": 9000}).sha256
