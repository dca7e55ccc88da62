"""Which tokens are parts of the same word, as their spelling alone tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm.tokenizer.tokenizer import Tokenizer

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class WordTable:
    """For each token of a vocabulary, whether a word may go on in it.

    A token goes on with the word before it if that ends, and it begins, with a letter, a digit or a part of a
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
