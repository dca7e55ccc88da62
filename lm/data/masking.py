"""Masked language modelling: selection and replacement of masked tokens.

Source: Devlin et al. 2019, section 3.1; new masks in each epoch, Liu et al. 2019 (RoBERTa).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORE_INDEX
from lm.data.batch import Batch
from lm.pseudorandom import Indices, uniform
from lm.tokenizer.special_tokens import require_mask_token
from lm.tokenizer.tokenizer import Tokenizer

_MASKED_FRACTION, _REPLACED_FRACTION = 0.8, 0.1
"""Fractions of the predicted tokens that are masked, and replaced by random tokens; the rest is unchanged."""

Ids = NDArray[np.int64]


class Masking:
    """Masks tokens as a pure function of rows and keys.

    Each token or word is selected with the same probability, and at least one per row. Special tokens are neither
    selected nor used as replacements. A token continues the word of the previous one if that ends, and it begins, with
    a letter, a digit or a part of a character.
    """

    def __init__(self, tokenizer: Tokenizer, *, fraction: float, whole_words: bool = False) -> None:
        """Mask a fraction of the tokens of a tokenizer; UsageError if it has no mask token."""
        self._fraction, self._mask_id, self._whole_words = fraction, require_mask_token(tokenizer), whole_words
        self._is_ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        self._is_ordinary[list(tokenizer.special_tokens.values())] = False
        self._ordinary_ids = np.flatnonzero(self._is_ordinary)
        if whole_words:
            spelled = [
                tokenizer.token_bytes(index) if ordinary else b"" for index, ordinary in enumerate(self._is_ordinary)
            ]
            self._begins_in_word, self._ends_in_word = (
                np.array([_is_word_byte(data, place) for data in spelled]) for place in (0, -1)
            )

    def batch(self, tokens: Ids, *, keys: Indices) -> Batch:
        """Return (rows, length) IDs as a batch with masked inputs and their targets; `keys` has one key per row."""
        length = tokens.shape[1]
        draws, replacement_draws, token_draws = np.split(uniform(keys, 3 * length), 3, axis=1)
        if self._whole_words:  # all tokens of a word have the draw of its first token
            continues = self._ends_in_word[tokens[:, :-1]] & self._begins_in_word[tokens[:, 1:]]
            starts = np.where(np.pad(continues, ((0, 0), (1, 0))), 0, np.arange(length))
            draws = np.take_along_axis(draws, np.maximum.accumulate(starts, axis=1), axis=1)
        draws = draws + ~self._is_ordinary[tokens]  # special tokens are selected only if a row has no others
        chosen = draws < np.maximum(self._fraction, np.nextafter(draws.min(axis=1, keepdims=True), 3.0))
        others = self._ordinary_ids[(token_draws * len(self._ordinary_ids)).astype(np.int64)]
        is_replaced = replacement_draws < _MASKED_FRACTION + _REPLACED_FRACTION
        replaced = np.where(replacement_draws < _MASKED_FRACTION, self._mask_id, np.where(is_replaced, others, tokens))
        return Batch(
            inputs=np.where(chosen, replaced, tokens),
            targets=np.where(chosen, tokens, IGNORE_INDEX),
            input_lengths=np.full(len(tokens), length, dtype=np.int64),
        )


def _is_word_byte(data: bytes, place: int) -> bool:
    """Whether the first or last byte belongs to a word; partial characters may."""
    if not data:
        return False
    try:
        return data.decode()[place].isalnum()
    except UnicodeDecodeError:
        return data[place] >= 0x80 or chr(data[place]).isalnum()
