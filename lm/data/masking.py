"""Masked language modelling: selection and replacement of masked tokens.

Source: Devlin et al. 2019, section 3.1; new masks in each epoch, Liu et al. 2019 (RoBERTa).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORE_INDEX
from lm.data.batch import Batch
from lm.pseudorandom import Indices, hash64, uniform
from lm.tokenizer.special_tokens import require_mask_token
from lm.tokenizer.tokenizer import Tokenizer

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class WordBoundaries:
    """Which tokens of a vocabulary can continue a word.

    A token continues the word of the previous one if that ends, and it begins, with a letter, a digit or a part of a
    character.

    Attributes:
        begins: (vocabulary,) whether a token begins within a word.
        ends: (vocabulary,) whether it ends within one.
    """

    begins: Flags
    ends: Flags

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> Self:
        special = set(tokenizer.special_tokens.values())
        spelled = [b"" if index in special else tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
        return cls(
            np.array([_is_word_byte(data, first=True) for data in spelled]),
            np.array([_is_word_byte(data, first=False) for data in spelled]),
        )

    def starts(self, tokens: NDArray[Any]) -> Flags:
        """Return (rows, length) whether a word starts at each token."""
        continues_word = self.ends[tokens[:, :-1]] & self.begins[tokens[:, 1:]]
        return np.concatenate([np.ones((len(tokens), 1), dtype=bool), ~continues_word], axis=1)


def _is_word_byte(data: bytes, *, first: bool) -> bool:
    """Whether the first or last byte belongs to a word; partial characters may."""
    if not data:
        return False
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data[0 if first else -1] >= 0x80 or chr(data[0 if first else -1]).isalnum()
    return text[0 if first else -1].isalnum()


_MASKED_FRACTION, _REPLACED_FRACTION = 0.8, 0.1
"""Fractions of the predicted tokens that are masked, and replaced by random tokens; the rest is unchanged."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Masking:
    """Masks tokens as a pure function of rows and keys.

    Each token or word is selected with the same probability, and at least one per row.

    Attributes:
        fraction: probability that a token is selected.
        ordinary_ids: IDs of tokens that are not special; special tokens are neither selected nor used as replacements.
        words: for whole-word masking, or None.
    """

    fraction: float
    mask_id: int
    ordinary_ids: Ids
    vocab_size: int
    words: WordBoundaries | None = None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, fraction: float, whole_words: bool = False) -> Self:
        """Create the masking for a tokenizer.

        Raises:
            UsageError: it has no mask token.
        """
        special, size = set(tokenizer.special_tokens.values()), tokenizer.vocab_size
        ordinary = np.array([index for index in range(size) if index not in special], dtype=np.int64)
        return cls(
            fraction,
            require_mask_token(tokenizer),
            ordinary,
            size,
            WordBoundaries.from_tokenizer(tokenizer) if whole_words else None,
        )

    def batch(self, tokens: Ids, *, keys: Indices) -> Batch:
        """Return (rows, length) IDs as a batch with masked inputs and their targets; `keys` has one key per row."""
        length = tokens.shape[1]
        draws = uniform(keys, 3 * length)
        chosen = self._select(tokens, draws[:, :length])
        replacement_draws, token_draws = draws[:, length : 2 * length], draws[:, 2 * length :]
        others = self.ordinary_ids[(token_draws * len(self.ordinary_ids)).astype(np.int64)]
        replaced = np.where(
            replacement_draws < _MASKED_FRACTION,
            self.mask_id,
            np.where(replacement_draws < _MASKED_FRACTION + _REPLACED_FRACTION, others, tokens),
        )
        return Batch(
            inputs=np.where(chosen, replaced, tokens),
            targets=np.where(chosen, tokens, IGNORE_INDEX),
            input_lengths=np.full(len(tokens), length, dtype=np.int64),
        )

    def _select(self, tokens: Ids, draws: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return (rows, length) which tokens are selected."""
        if self.words is not None:  # all tokens of a word have the draw of its first token
            starts = np.where(self.words.starts(tokens), np.arange(tokens.shape[1]), 0)
            draws = np.take_along_axis(draws, np.maximum.accumulate(starts, axis=1), axis=1)
        is_ordinary = np.zeros(self.vocab_size, dtype=bool)
        is_ordinary[self.ordinary_ids] = True
        draws = draws + ~is_ordinary[tokens]  # special tokens are selected only if a row has no others
        return draws < np.maximum(self.fraction, np.nextafter(draws.min(axis=1, keepdims=True), 3.0))


def sample_keys(seed: int, samples: Indices) -> Indices:
    """Derive a key for each sample of a run."""
    return hash64(hash64(hash64(np.array([seed], dtype=np.uint64))) ^ samples)
