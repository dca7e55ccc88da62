"""What is kept between runs because it can be made again: tokens, and tokenizers trained on the way to them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import tokenizers

from lm.config.run import FORMAT_VERSION
from lm.config.tokenizer import TokenizerConfig
from lm.data.corpus import Corpus, training_texts
from lm.errors import InputError
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer


def cache_root() -> Path:
    """Where things are kept: `$LM_CACHE`, else `lm` in `$XDG_CACHE_HOME` or in `~/.cache`."""
    if chosen := os.environ.get("LM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm"


def train_tokenizer(
    corpus: Corpus, config: TokenizerConfig, *, special_tokens: Sequence[str] = (), unknown: str | None = None
) -> Tokenizer:
    """Train a tokenizer on the sources of a corpus, or find the one trained on the same before.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    return tokenizer_of(
        lambda: training_texts(corpus),
        config,
        identity=[corpus.separator, *(found.identity for found in corpus.sources)],
        corpus_bytes=corpus.source_bytes,
        special_tokens=special_tokens,
        unknown=unknown,
    )


def tokenizer_of(
    texts: Callable[[], Iterable[str]],
    config: TokenizerConfig,
    *,
    identity: Sequence[str],
    corpus_bytes: int,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
) -> Tokenizer:
    """Train a tokenizer on texts, or find the one trained on the same before.

    Args:
        texts: gives the texts, as `tokenizer_training.train` takes them.
        config: kind and size.
        identity: what the texts follow from.
        corpus_bytes: UTF-8 bytes of all of them.
        special_tokens: to be added.
        unknown: the character that stands for characters never seen.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    training.check(config, special_tokens=special_tokens, unknown=unknown)
    settings = [dataclasses.asdict(config), list(special_tokens), unknown, training.SAMPLE_BYTES]
    depends = [FORMAT_VERSION, tokenizers.__version__, settings, list(identity)]
    path = cache_root() / "tokenizers" / f"{hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]}.json"
    try:
        return Tokenizer.load(path)
    except InputError:
        trained = training.train(
            texts(), config, corpus_bytes=corpus_bytes, special_tokens=special_tokens, unknown=unknown
        )
    trained.tokenizer.save(path)
    return trained.tokenizer
