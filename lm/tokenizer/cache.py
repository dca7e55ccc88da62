"""Trained tokenizers in the cache, so that each is trained once for the same text and settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import tokenizers

from lm import files
from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError
from lm.files import cache_root, check_cache
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)
_CHECKSUM = ".sha256"

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
    elif (found := _undamaged(path)) is not None:
        return found
    trained = training.train(texts(), config, corpus_bytes=corpus_bytes, special_tokens=special_tokens, unknown=unknown)
    path.with_suffix(_CHECKSUM).unlink(missing_ok=True)
    trained.tokenizer.save(path)
    files.replace_text(path.with_suffix(_CHECKSUM), files.sha256(path) + "\n")
    return trained.tokenizer


def _undamaged(path: Path) -> Tokenizer | None:
    """A tokenizer of the cache, if its file is as it was written; one without a checksum, of an earlier version, is."""
    checksum = path.with_suffix(_CHECKSUM)
    try:
        if checksum.is_file() and checksum.read_text(encoding="utf-8", errors="replace").strip() != files.sha256(path):
            raise InputError(f"{path}: damaged, since its checksum is not that of the file as made")
        return Tokenizer.load(path)
    except InputError as error:
        _LOG.warning("%s; the tokenizer is trained again", error)
        return None
