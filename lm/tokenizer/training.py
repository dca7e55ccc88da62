"""Train tokenizers; the same text and settings are trained once and then read from the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.errors import InputError, UsageError
from lm.files import cache_root, check_cache
from lm.tokenizer.byte_tokens import ANY_CHARACTER, byte_alphabet
from lm.tokenizer.tokenizer import Tokenizer

SAMPLE_BYTES = 128_000_000
"""Maximum text to train BPE on, to bound memory."""


class TrainedTokenizer(NamedTuple):
    """A tokenizer and how much text it was trained on.

    Attributes:
        sample_bytes: UTF-8 bytes of the text that was used.
        corpus_bytes: UTF-8 bytes of all text.
    """

    tokenizer: Tokenizer
    sample_bytes: int
    corpus_bytes: int


def train(
    texts: Iterable[str],
    config: TokenizerConfig,
    *,
    corpus_bytes: int,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
    sample_bytes: int = SAMPLE_BYTES,
) -> TrainedTokenizer:
    """Train a tokenizer; deterministic for the same texts and settings.

    Args:
        texts: the corpus in pieces, each small compared to `sample_bytes` and cut between words.
        corpus_bytes: UTF-8 bytes of all texts.
        special_tokens: to be added; bpe and byte tokenizers always have `<|endoftext|>`.
        unknown: the character for characters that the texts don't have; only for `char`.
        sample_bytes: most text used for BPE, spread evenly over the corpus.

    Raises:
        InputError: there is no text.
        UsageError: the settings contradict each other.
    """
    check_settings(config, special_tokens=special_tokens, unknown=unknown)
    if not corpus_bytes and config.kind != "byte":
        raise InputError("there is no text to train a tokenizer on")
    if config.kind == "byte":
        return TrainedTokenizer(_build_bytes(special_tokens), 0, corpus_bytes)
    if config.kind == "char":
        return TrainedTokenizer(_build_characters(texts, special_tokens, unknown), corpus_bytes, corpus_bytes)
    sample = TextSample(texts, corpus_bytes=corpus_bytes, limit=sample_bytes)
    return TrainedTokenizer(_train_bpe(sample, config, special_tokens), sample.used, corpus_bytes)


def check_settings(config: TokenizerConfig, *, special_tokens: Sequence[str] = (), unknown: str | None = None) -> None:
    """Raise UsageError if the settings contradict each other, before any text is read."""
    if "" in special_tokens:
        raise UsageError("a special token cannot be empty")
    if unknown is not None and (config.kind != "char" or len(unknown) != 1):
        raise UsageError(f"unknown must be one character, of a tokenizer of characters, not {unknown!r}")
    least = 256 + len(_with_end_token(special_tokens))
    if config.kind == "bpe" and config.vocab_size < least:
        raise UsageError(f"vocab_size {config.vocab_size} is too small: bytes and special tokens take {least}")


def _with_end_token(special_tokens: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([END_OF_TEXT, *special_tokens]))


def _train_bpe(texts: Iterable[str], config: TokenizerConfig, special_tokens: Sequence[str]) -> Tokenizer:
    """Train byte-level BPE as in GPT-2: its pre-tokenisation, no prefix space, all bytes are tokens.

    With merges within characters, a frequent character is one token and a rare one its bytes. The mask includes the
    space before it, which is part of the token that it stands for (RoBERTa, Liu et al. 2019).
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if config.merges == "characters":
        characters = pre_tokenizers.Split(tokenizers.Regex(ANY_CHARACTER), "isolated")
        its_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([characters, its_bytes])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=[
            tokenizers.AddedToken(token, lstrip=token == MASK, special=True, normalized=False)
            for token in _with_end_token(special_tokens)
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def _build_characters(texts: Iterable[str], special_tokens: Sequence[str], unknown: str | None) -> Tokenizer:
    """Build a vocabulary of the characters of the corpus, in order of code points."""
    seen = np.zeros(0x110000, dtype=bool)
    for text in texts:
        seen[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)] = True
    if unknown is not None:
        seen[ord(unknown)] = True
    vocabulary = {chr(point): index for index, point in enumerate(np.flatnonzero(seen).tolist())}
    model = models.WordLevel(vocabulary, unk_token="<unk>" if unknown is None else unknown)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(ANY_CHARACTER), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(dict.fromkeys(special_tokens)))
    return Tokenizer(backend)


def _build_bytes(special_tokens: Sequence[str]) -> Tokenizer:
    """Build a vocabulary of the 256 bytes and the special tokens."""
    backend = tokenizers.Tokenizer(models.BPE(byte_alphabet(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_with_end_token(special_tokens))
    return Tokenizer(backend)


class TextSample:
    """All texts if they fit a limit, else as many as fit, spread evenly.

    Attributes:
        used: UTF-8 bytes of the texts yielded so far.
    """

    def __init__(self, texts: Iterable[str], *, corpus_bytes: int, limit: int) -> None:
        self._texts = texts
        self._share = min(1.0, limit / corpus_bytes)
        self.used = 0

    def __iter__(self) -> Iterator[str]:
        """Yield the sampled texts, in order."""
        seen = 0
        for text in self._texts:
            size = len(text.encode())
            seen += size
            if self.used + size <= seen * self._share:
                self.used += size
                yield text


KEY_VERSION = 1
"""Version of the keys; incremented when the same text and settings give another tokenizer."""


def load_or_train(
    texts: Callable[[], Iterable[str]],
    config: TokenizerConfig,
    *,
    identity: Sequence[str],
    corpus_bytes: int,
    special_tokens: Sequence[str] = (),
    unknown: str | None = None,
) -> Tokenizer:
    """Load a tokenizer from the cache, or train it.

    Args:
        texts: called if a tokenizer has to be trained; returns the texts for `train`.
        identity: what determines the texts, such as checksums of files.
        corpus_bytes: UTF-8 bytes of all texts.
        unknown: the character for characters that the texts don't have.

    Raises:
        InputError: there is no text, or the cache is not writable.
        UsageError: the settings contradict each other.
    """
    check_settings(config, special_tokens=special_tokens, unknown=unknown)
    settings = [dataclasses.asdict(config), list(special_tokens), unknown, SAMPLE_BYTES]
    depends = [KEY_VERSION, tokenizers.__version__, settings, list(identity)]
    path = cache_root() / "tokenizers" / f"{hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]}.json"
    if path.is_file():
        return Tokenizer.load(path)
    check_cache()
    trained = train(texts(), config, corpus_bytes=corpus_bytes, special_tokens=special_tokens, unknown=unknown)
    trained.tokenizer.save(path)
    return trained.tokenizer
