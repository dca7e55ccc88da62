"""BPE dropout: merges are skipped at random, so that a model sees words in many segmentations.

The generator of `tokenizers` cannot be seeded; here a segmentation is a pure function of a key, so that training is
reproducible and resumable. Many words are merged at once with array operations.

Source: Provilkov et al. 2020, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.data.bucketing import length_batches
from lm.pseudorandom import Indices, hash64
from lm.tokenizer.tokenizer import Tokenizer

Integers = NDArray[np.int64]

_NO_RULE = np.iinfo(np.int64).max
"""Rank of a pair without a merge rule."""

_BATCH_CHARACTERS = 1 << 20  # characters per batch, including padding
_STEP = np.uint64(0x9E3779B97F4A7C15)


class DropoutMerges:
    """Merge rules of a BPE vocabulary, and the characters that its tokens are merged from.

    A token that cannot be spelled with single-character tokens, such as an added token, is not split.
    """

    def __init__(self, vocabulary: Mapping[str, int], rules: Sequence[Sequence[str]], *, whole: Sequence[int]) -> None:
        """Build the rules from token IDs, merges in order of rank, and IDs of tokens that are never split."""
        pairs = np.array([[vocabulary[left], vocabulary[right]] for left, right in rules], dtype=np.int64).reshape(
            -1, 2
        )
        keys = (pairs[:, 0] << 32) | pairs[:, 1]
        order = np.argsort(keys, kind="stable")
        self._keys, self._ranks = np.append(keys[order], -1), np.append(order, _NO_RULE)
        self._results = np.array([vocabulary[left + right] for left, right in rules], dtype=np.int64)
        self._characters = RaggedArray.from_rows(_token_characters(vocabulary, set(whole)))

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> DropoutMerges | None:
        """Return the rules of a tokenizer; None if it has none."""
        rules = tokenizer.merge_rules
        return None if rules is None else cls(rules.vocabulary, rules.rules, whole=rules.whole)

    def characters(self, words: RaggedArray) -> RaggedArray:
        """Return the characters of words that are given as tokens."""
        return self._characters.take(words.values).merge_rows(words.ends)

    def ranks_of(self, left: Integers, right: Integers) -> Integers:
        """Return the rank of the rule that merges each pair of tokens, or the largest integer without one."""
        keys = (left << 32) | right
        indices = np.searchsorted(self._keys[:-1], keys)
        return np.where(self._keys[indices] == keys, self._ranks[indices], _NO_RULE)

    def merge_results(self, ranks: Integers) -> Integers:
        """Return the tokens that rules produce."""
        return self._results[ranks]


def _token_characters(vocabulary: Mapping[str, int], whole: set[int]) -> list[list[int]]:
    letters = [[index] for index in range(max(vocabulary.values(), default=-1) + 1)]
    for token, index in vocabulary.items():
        spelled = [vocabulary.get(character, -1) for character in token]
        if index not in whole and -1 not in spelled:
            letters[index] = spelled
    return letters


def segment_words(words: RaggedArray, merges: DropoutMerges, *, dropout: float, keys: Indices) -> RaggedArray:
    """Merge the characters of words, skipping merges at random.

    In each step every possible merge is skipped with probability `dropout`; of the others, the one of lowest rank is
    applied, the leftmost on ties.

    Args:
        words: characters of each word, at least one.
        dropout: 0 gives plain BPE, 1 the characters.
        keys: (words,) the segmentation is a function of characters and key.

    Returns:
        The tokens.
    """
    batches = length_batches(words.lengths(), tokens=_BATCH_CHARACTERS, ratio=1.25)
    done = [_merge_words(words.take(rows), merges, dropout, keys[rows]) for rows in batches]
    order = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    return RaggedArray.concatenate(done).take(np.argsort(order, kind="stable"))


class _MergeTable:
    """Words as linked lists in rows of an array, with an empty column on both sides."""

    def __init__(self, words: RaggedArray, merges: DropoutMerges) -> None:
        lengths = words.lengths()
        width = int(lengths.max()) + 2
        columns = np.arange(width)
        self._merges = merges
        self._tokens = np.full((len(lengths), width), -1, dtype=np.int64)
        self._tokens[(columns > 0) & (columns <= lengths[:, None])] = words.values
        self._next = np.tile(columns + 1, (len(lengths), 1))
        self._previous = np.tile(columns - 1, (len(lengths), 1))
        self.ranks = np.full(self._tokens.shape, _NO_RULE)
        self.ranks[:, :-1] = merges.ranks_of(self._tokens[:, :-1], self._tokens[:, 1:])

    def merge(self, rows: Integers, left: Integers) -> None:
        """Merge the token in column `left` with the next one, in each of some rows."""
        right = self._next[rows, left]
        after, before = self._next[rows, right], self._previous[rows, left]
        self._tokens[rows, left] = self._merges.merge_results(self.ranks[rows, left])
        self._tokens[rows, right] = -1
        self._next[rows, left], self._previous[rows, after] = after, left
        self.ranks[rows, right] = _NO_RULE
        for first, second in ((before, left), (left, after)):
            self.ranks[rows, first] = self._merges.ranks_of(self._tokens[rows, first], self._tokens[rows, second])

    def words(self) -> RaggedArray:
        kept = self._tokens >= 0
        return RaggedArray(self._tokens[kept], np.cumsum(kept.sum(axis=1)))


def _merge_words(words: RaggedArray, merges: DropoutMerges, dropout: float, keys: Indices) -> RaggedArray:
    table = _MergeTable(words, merges)
    candidates = table.ranks.copy()  # not skipped in this step
    rows, draw = np.arange(len(keys)), np.uint64(0)
    while len(rows):
        column = candidates[rows].argmin(axis=1)
        unfinished = candidates[rows, column] < _NO_RULE
        rows, column = rows[unfinished], column[unfinished]
        with np.errstate(over="ignore"):
            draw += _STEP
        skipped = (hash64(keys[rows] ^ draw) >> np.uint64(11)) < dropout * 2.0**53
        candidates[rows[skipped], column[skipped]] = _NO_RULE
        merged = rows[~skipped]
        table.merge(merged, column[~skipped])
        candidates[merged] = table.ranks[merged]
    return table.words()
