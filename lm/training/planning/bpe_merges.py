"""Selection of BPE merges within words or within characters, by n-gram baselines on a sample of the text.

Characters are better tokens for Chinese, which has no spaces; subwords are for English (docs/lab/recipe.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lm.config.tokenizer import MergeScope, TokenizerConfig
from lm.evaluation.ngram import compute_ngram_surprisals
from lm.tokenizer.training import train

SAMPLE_BYTES = 400_000
"""Size of the sample, for which the baselines take a second or two."""
_MIN_BYTES = 10_000  # less has too little held-out text
_MIN_BYTES_PER_CHARACTER = 1.5  # single-byte characters are too short as tokens
_HELD_OUT_FRACTION = 0.1  # fraction at the end of each text
_NGRAM_ORDER = 5
_MAX_SUBWORD_VOCAB = 1024  # the sample is too small for a larger vocabulary
_MAX_CHARACTER_VOCAB = 16_384
_MAX_RATIO = 0.98
"""Maximum ratio of bits/byte from which characters are chosen; then neural models agree (docs/lab/recipe.md)."""
_CHUNK = 1 << 16  # characters per encode call


def choose_merges(*, words: float, characters: float) -> MergeScope:
    """Choose the merges from the bits/byte of both n-gram baselines."""
    return "characters" if characters <= _MAX_RATIO * words else "words"


@dataclass(frozen=True)
class MergeBaselines:
    """N-gram baselines of a sample.

    Attributes:
        words: bits/byte with merges within words.
        characters: bits/byte with merges within characters.
        vocab_size: number of frequent characters in the sample, plus bytes.
    """

    words: float
    characters: float
    vocab_size: int

    @property
    def reason(self) -> str:
        """The reason for the user."""
        return f"n-gram baselines: characters {self.characters:.2f}, BPE {self.words:.2f} bits/byte"

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the RunConfig fields that follow, by section."""
        merges = choose_merges(words=self.words, characters=self.characters)
        vocabulary = {"vocab_size": self.vocab_size} if merges == "characters" else {}
        return {"tokenizer": {"merges": merges, **vocabulary}}


def measure_merge_baselines(texts: Iterable[str], config: TokenizerConfig) -> MergeBaselines | None:
    """Measure the n-gram baselines of a sample.

    Args:
        texts: a sample of each file.
        config: of the tokenizer with merges within words.

    Returns:
        None if there is too little text, or most characters are single bytes.
    """
    beginnings, ends = [], []
    for text in texts:
        end = round((1 - _HELD_OUT_FRACTION) * len(text))
        beginnings.append(text[:end])
        ends.append(text[end:])
    n_bytes, n_characters = (sum(map(size, (*beginnings, *ends))) for size in (_byte_length, len))
    if n_bytes < max(_MIN_BYTES, _MIN_BYTES_PER_CHARACTER * n_characters):
        return None
    word_config = replace(config, merges="words", vocab_size=min(config.vocab_size, _MAX_SUBWORD_VOCAB))
    words, _ = _bits_per_byte(beginnings, ends, word_config)
    character_config = replace(config, merges="characters", vocab_size=_MAX_CHARACTER_VOCAB)
    characters, vocab_size = _bits_per_byte(beginnings, ends, character_config)
    return MergeBaselines(words, characters, vocab_size)


def _bits_per_byte(beginnings: Sequence[str], ends: Sequence[str], config: TokenizerConfig) -> tuple[float, int]:
    """Return bits/byte of the best n-gram baseline with a tokenizer trained on the text, and its vocabulary size."""
    chunks = [text[start : start + _CHUNK] for text in beginnings for start in range(0, len(text), _CHUNK)]
    tokenizer = train(chunks, config, corpus_bytes=sum(map(_byte_length, chunks)))
    seen, held_out = (np.concatenate(tokenizer.encode_batch(texts)).astype(np.int64) for texts in (chunks, ends))
    surprisals = compute_ngram_surprisals(seen, held_out, vocab_size=tokenizer.vocab_size, order=_NGRAM_ORDER)
    bits = min(float(nats.sum()) for nats in surprisals) / math.log(2)
    return bits / sum(map(_byte_length, ends)), tokenizer.vocab_size


def _byte_length(text: str) -> int:
    return len(text.encode())
