"""Byte offsets of tokens in their text, including tokens that are parts of characters or stand for other characters."""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lm.text import Record
from lm.tokenizer import Tokenizer

Ids = npt.NDArray[np.integer[Any]]
ByteOffsets = npt.NDArray[np.int64]


class RoundTripLoss(NamedTuple):
    """What is lost when a text is encoded and decoded.

    Attributes:
        unknown: tokens for text that the vocabulary cannot represent.
        bytes: bytes of the text, without white space, that its tokens do not spell: of unknown characters, and of
            letters whose case, accents or form normalisation changes.
    """

    unknown: int = 0
    bytes: int = 0


class TokenOffsets:
    """Finds where tokens end in their text; caches the bytes of each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = functools.cache(tokenizer.token_bytes)

    def ends(self, piece: Record, tokens: Ids) -> ByteOffsets:
        """Return the byte offset at which each token of a piece ends.

        Tokens that spell the text byte for byte end where their bytes do. Otherwise (unknown characters, normalised
        text, implied spaces) they end at the tokenizer's character offsets: text between two tokens belongs to the
        second, and of several tokens for one character the first has all of it.

        Args:
            piece: a text that can be tokenized alone.

        Returns:
            (tokens,) non-decreasing offsets; the last is the size of the text.
        """
        data = piece.text.encode()
        parts = [*map(self._bytes, tokens.tolist())]
        if not parts or b"".join(parts) == data:
            return np.cumsum([len(part) for part in parts], dtype=np.int64)
        marks = tuple(map(str.encode, self._tokenizer.marks))
        is_mark = np.array([part.endswith(marks) for part in parts])  # its letter belongs to the token after it
        ends = np.array(self._tokenizer.character_ends(piece.context + piece.text)[-len(parts) :]) - is_mark
        offsets = np.cumsum([0, *(len(character.encode()) for character in piece.text)])
        ends = np.clip(ends - len(piece.context), 0, len(piece.text))
        return offsets[np.maximum.accumulate([*ends[:-1], len(piece.text)])]

    def round_trip_loss(self, piece: Record, tokens: Ids) -> RoundTripLoss:
        """Count what encoding and decoding loses of a piece, a text that can be tokenized alone."""
        unknown = tokens == self._tokenizer.unknown
        known = tokens[~unknown].tolist()
        # Only inline casing restores what it normalises
        spelled = self._tokenizer.decode(known).encode() if self._tokenizer.marks else b"".join(map(self._bytes, known))
        lost = Counter("".join(piece.text.split()).encode()) - Counter(spelled)
        return RoundTripLoss(int(unknown.sum()), lost.total())


def assign_word_indices(text: str, ends: Iterable[int]) -> list[int]:
    """Return the index of the whitespace-separated word of each token, given the byte offsets where tokens end.

    White space belongs to the next word, at the end of a text to the last one. A token that spans several words belongs
    to the first.
    """
    word_ends = [*itertools.accumulate(len(word.encode()) for word in re.findall(r"\s*\S+", text))]
    words, start = [], 0
    for end in ends:
        words.append(min(bisect_right(word_ends, start), max(0, len(word_ends) - 1)))
        start = end
    return words
