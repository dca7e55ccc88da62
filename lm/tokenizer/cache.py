"""Trained tokenizers in the cache, so that each is trained once for the same text and settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence

import tokenizers

from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError
from lm.files import cache_root, check_cache
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer

KEY_VERSION = 1
"""Of what keys are made of: raised when the same text and settings train another tokenizer."""


def tokenizer_of(
    texts: Callable[[], Iterable[str]],
    config: TokenizerConfig,
    *,
    identity: Sequence[str],
    corpus_bytes: int,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
) -> Tokenizer:
    """Train a tokenizer on texts, or find the one that was trained on the same texts before.

    Args:
        texts: called only if a tokenizer has to be trained; gives the texts, as `training.train` takes them.
        config: kind and size.
        identity: what the texts follow from, such as hashes of files.
        corpus_bytes: UTF-8 bytes of all texts.
        special_tokens: special tokens to be added.
        unknown: the character that stands for characters that the texts do not have.

    Raises:
        InputError: there is no text, or nothing can be kept in the cache.
        UsageError: the settings contradict each other.
    """
    training.check(config, special_tokens=special_tokens, unknown=unknown)
    settings = [dataclasses.asdict(config), list(special_tokens), unknown, training.SAMPLE_BYTES]
    depends = [KEY_VERSION, tokenizers.__version__, settings, list(identity)]
    path = cache_root() / "tokenizers" / f"{hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]}.json"
    if not path.is_file():
        check_cache()
    try:
        return Tokenizer.load(path)
    except InputError:
        trained = training.train(
            texts(), config, corpus_bytes=corpus_bytes, special_tokens=special_tokens, unknown=unknown
        )
    trained.tokenizer.save(path)
    return trained.tokenizer
