"""The words of one side of a corpus, numbered as they come, so that a sentence is a sequence of numbers."""

from __future__ import annotations

import itertools
from array import array

import numpy as np
from numpy.typing import NDArray

from lm.data.ragged import Ragged

MOST_TOKENS = 1 << 21
"""The most tokens that the words of a table may have together, so that memory stays bounded."""


class WordTable:
    """Numbers words by their tokens.

    When the table is full, a word that it does not have is split into words of one token each. Read back, the tokens
    are the same; BPE dropout alone then treats each token as a word, and merges nothing across their borders.
    """

    def __init__(self, *, most_tokens: int = MOST_TOKENS) -> None:
        """An empty table; its words have at most `most_tokens` tokens together, words of one token aside."""
        self._most_tokens = most_tokens
        self._numbers: dict[bytes, int] = {}
        self._tokens = array("I")
        self._ends = array("q")

    def words(self, sentences: Ragged, starts: NDArray[np.bool_]) -> Ragged:
        """The numbers of the words of sentences.

        Args:
            sentences: the tokens of each sentence.
            starts: (tokens,) whether a token starts a word, as the first one of a sentence does.
        """
        tokens = sentences.values.astype(np.uint32)
        bounds = np.append(np.flatnonzero(starts), len(tokens))
        data, size = tokens.tobytes(), tokens.itemsize
        numbers, counts = [], []
        edges = (bounds * size).tolist()
        for start, end in itertools.pairwise(edges):
            known = self._numbers.get(data[start:end])
            added = [known] if known is not None else self._add(data[start:end], size)
            numbers += added
            counts.append(len(added))
        ends = np.append(0, np.cumsum(counts, dtype=np.int64))
        return Ragged(np.array(numbers, dtype=np.int64), ends[np.searchsorted(bounds, sentences.ends)])

    def rows(self) -> Ragged:
        """The tokens of all words."""
        return Ragged(np.array(self._tokens, dtype=np.int64), np.array(self._ends, dtype=np.int64))

    def _add(self, word: bytes, size: int) -> list[int]:
        if len(word) > size and len(self._tokens) + len(word) // size > self._most_tokens:
            parts = [word[start : start + size] for start in range(0, len(word), size)]
            return [self._numbers[part] if part in self._numbers else self._number(part) for part in parts]
        return [self._number(word)]

    def _number(self, word: bytes) -> int:
        number = self._numbers[word] = len(self._ends)
        self._tokens.frombytes(word)
        self._ends.append(len(self._tokens))
        return number
