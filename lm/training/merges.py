"""Whether BPE merges bytes into parts of words, or only into characters: n-gram baselines on a sample of a text tell.

In Chinese, which has no spaces, characters are the better tokens; in English, parts of words are (docs/recipe.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lm.config.tokenizer import Merges, TokenizerConfig
from lm.evaluation.ngram_baseline import compute_ngram_surprisals
from lm.tokenizer.training import train

SAMPLE_BYTES = 400_000
"""Of text, for which the baselines take a second or two."""
_LEAST_BYTES = 10_000  # a tenth of less is too little to tell anything
_LEAST_BYTES_A_CHARACTER = 1.5  # characters of single bytes are short units, of which a context holds few
_HELD_OUT = 0.1  # of each text, its end
_ORDER = 5
_LARGEST_SUBWORDS = 1024  # in such a sample a larger vocabulary has too few examples
_LARGEST_CHARACTERS = 16_384
_WORTH = 0.98
"""Characters have to need this much of the bits of subwords at most, for then neural models agree (docs/recipe.md)."""
_LONGEST = 1 << 16  # characters to encode at a time


def best_merges(*, words: float, characters: float) -> Merges:
    """Choose what BPE merges, by the bits/byte of n-gram baselines with merges within words and within characters."""
    return "characters" if characters <= _WORTH * words else "words"


@dataclass(frozen=True)
class Baselines:
    """The n-gram baselines of a sample.

    Attributes:
        words: bits/byte with merges within words.
        characters: bits/byte with merges within characters.
        vocab_size: of the characters that occur often enough in the sample, and the bytes.
    """

    words: float
    characters: float
    vocab_size: int

    @property
    def reason(self) -> str:
        """What they are, for a person."""
        return f"n-gram baselines: characters {self.characters:.2f}, BPE {self.words:.2f} bits/byte"

    def settings(self) -> dict[str, dict[str, Any]]:
        """The fields of a RunConfig that follow from them, by section."""
        merges = best_merges(words=self.words, characters=self.characters)
        vocabulary = {"vocab_size": self.vocab_size} if merges == "characters" else {}
        return {"tokenizer": {"merges": merges, **vocabulary}}


def baselines(texts: Iterable[str], config: TokenizerConfig) -> Baselines | None:
    """Measure the n-gram baselines of a sample.

    Args:
        texts: a sample of each file.
        config: of the tokenizer with merges within words.

    Returns:
        None where there is too little text to tell, or most of its characters are single bytes.
    """
    begun, ends = [], []
    for text in texts:
        end = round((1 - _HELD_OUT) * len(text))
        begun.append(text[:end])
        ends.append(text[end:])
    n_bytes, n_characters = (sum(map(size, (*begun, *ends))) for size in (_n_bytes, len))
    if n_bytes < max(_LEAST_BYTES, _LEAST_BYTES_A_CHARACTER * n_characters):
        return None
    of_words = replace(config, merges="words", vocab_size=min(config.vocab_size, _LARGEST_SUBWORDS))
    words, _ = _bits_per_byte(begun, ends, of_words)
    of_characters = replace(config, merges="characters", vocab_size=_LARGEST_CHARACTERS)
    characters, vocab_size = _bits_per_byte(begun, ends, of_characters)
    return Baselines(words, characters, vocab_size)


def _bits_per_byte(begun: Sequence[str], ends: Sequence[str], config: TokenizerConfig) -> tuple[float, int]:
    """The bits/byte of the best n-gram baseline with a tokenizer, trained on the same text, and its vocabulary size."""
    cut = [text[start : start + _LONGEST] for text in begun for start in range(0, len(text), _LONGEST)]
    tokenizer = train(cut, config, corpus_bytes=sum(map(_n_bytes, cut))).tokenizer
    seen, held_out = (np.concatenate(tokenizer.encode_batch(texts)).astype(np.int64) for texts in (cut, ends))
    found = compute_ngram_surprisals(seen, held_out, vocab_size=tokenizer.vocab_size, order=_ORDER)
    bits = min(float(nats.sum()) for nats in found) / math.log(2)
    return bits / sum(map(_n_bytes, ends)), tokenizer.vocab_size


def _n_bytes(text: str) -> int:
    return len(text.encode())
