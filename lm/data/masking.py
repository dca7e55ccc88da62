"""Masked language modelling: which tokens are to be predicted, and what is read in their place.

Source: Devlin et al. 2019, section 3.1; masks that differ each time, Liu et al. 2019 (RoBERTa).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORE_INDEX
from lm.data.batch import Batch
from lm.pseudorandom import Indices, mix, uniforms
from lm.tokenizer.special_tokens import require_mask_token
from lm.tokenizer.tokenizer import Tokenizer

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class WordBoundaries:
    """For each token of a vocabulary, whether a word may continue in it.

    A token continues the word before it if that ends, and it begins, with a letter, a digit or a part of a
    character: white space and punctuation part words, and special tokens are none.

    Attributes:
        begins: (vocabulary,) whether a token begins within a word.
        ends: (vocabulary,) whether it ends within one.
    """

    begins: Flags
    ends: Flags

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The table of a tokenizer's vocabulary."""
        special = set(tokenizer.special_tokens.values())
        spelled = [b"" if index in special else tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
        return cls(
            np.array([_is_of_word(data, first=True) for data in spelled]),
            np.array([_is_of_word(data, first=False) for data in spelled]),
        )

    def starts(self, tokens: NDArray[Any]) -> Flags:
        """(rows, length) ids -> (rows, length) whether a word, or what is none, starts at each."""
        goes_on = self.ends[tokens[:, :-1]] & self.begins[tokens[:, 1:]]
        return np.concatenate([np.ones((len(tokens), 1), dtype=bool), ~goes_on], axis=1)


def _is_of_word(data: bytes, *, first: bool) -> bool:
    """Whether the first, or the last, of some bytes belongs to a word; what is no whole character may."""
    if not data:
        return False
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data[0 if first else -1] >= 0x80 or chr(data[0 if first else -1]).isalnum()
    return text[0 if first else -1].isalnum()


_MASKED, _REPLACED = 0.8, 0.1
"""Of the tokens to be predicted, the shares that are masked and replaced by any; the rest is left as it is."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Masking:
    """Hides tokens of rows, as a pure function of the rows and a key for each.

    Each token, or word, is chosen with the same probability; of a row without any, the one that was nearest to it is.

    Attributes:
        share: probability that a token is chosen.
        mask: the token that hides one.
        ordinary: ids of the tokens that are not special: those are never chosen, nor put in the place of others.
        vocab_size: above every id.
        words: tells words apart where these are chosen whole; None to choose each token apart.
    """

    share: float
    mask: int
    ordinary: Ids
    vocab_size: int
    words: WordBoundaries | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, share: float, whole_words: bool = False) -> Self:
        """How tokens of a tokenizer are hidden.

        Raises:
            UsageError: it has no mask.
        """
        special, size = set(tokenizer.special_tokens.values()), tokenizer.vocab_size
        ordinary = np.array([index for index in range(size) if index not in special], dtype=np.int64)
        return cls(
            share, require_mask_token(tokenizer), ordinary, size, WordBoundaries.of(tokenizer) if whole_words else None
        )

    def batch(self, tokens: Ids, *, keys: Indices) -> Batch:
        """(rows, length) ids as a batch in which some are hidden, and these are the targets; a key for each row."""
        length = tokens.shape[1]
        draws = uniforms(keys, 3 * length)
        chosen = self._chosen(tokens, draws[:, :length])
        what, which = draws[:, length : 2 * length], draws[:, 2 * length :]
        others = self.ordinary[(which * len(self.ordinary)).astype(np.int64)]
        replaced = np.where(what < _MASKED, self.mask, np.where(what < _MASKED + _REPLACED, others, tokens))
        return Batch(
            inputs=np.where(chosen, replaced, tokens),
            targets=np.where(chosen, tokens, IGNORE_INDEX),
            input_lengths=np.full(len(tokens), length, dtype=np.int64),
        )

    def _chosen(self, tokens: Ids, draws: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(rows, length) which tokens are to be predicted: in each row at least one."""
        if self.words is not None:  # all tokens of a word have the draw of its first
            places = np.where(self.words.starts(tokens), np.arange(tokens.shape[1]), 0)
            draws = np.take_along_axis(draws, np.maximum.accumulate(places, axis=1), axis=1)
        is_ordinary = np.zeros(self.vocab_size, dtype=bool)
        is_ordinary[self.ordinary] = True
        draws = draws + ~is_ordinary[tokens]  # above every share; least of all where a row has nothing else
        return draws < np.maximum(self.share, np.nextafter(draws.min(axis=1, keepdims=True), 3.0))


def keys_of(seed: int, samples: Indices) -> Indices:
    """A key for each sample of a run; of neighbouring seeds they have nothing in common."""
    return mix(mix(mix(np.array([seed], dtype=np.uint64))) ^ samples)
