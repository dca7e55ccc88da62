"""BPE dropout: merges are left out at random, so that a model sees each word in many segmentations.

The generator in `tokenizers` cannot be seeded. Here the segmentation of a word is a pure function of a key, which makes
training with it reproducible and resumable. Many words are merged at once, each step of all of them being a few array
operations.

Source: Provilkov et al. 2020, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.data.bucketing import length_batches
from lm.pseudorandom import Indices, mix
from lm.tokenizer.tokenizer import Tokenizer

Integers = NDArray[np.int64]

_NONE = np.iinfo(np.int64).max
"""The rank of a pair that no rule merges."""

_CELLS = 1 << 20  # letters, padding included, that are merged at once
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Merges:
    """The merge rules of a BPE vocabulary, and the letters that its tokens are merged from.

    A token that cannot be spelled with tokens of one character, such as an added one, is its own only letter.
    """

    def __init__(self, vocabulary: Mapping[str, int], rules: Sequence[Sequence[str]], *, whole: Sequence[int]) -> None:
        """The ids of the tokens, the rules with the first one first, and tokens that are never taken apart."""
        pairs = np.array([[vocabulary[left], vocabulary[right]] for left, right in rules], dtype=np.int64).reshape(
            -1, 2
        )
        keys = (pairs[:, 0] << 32) | pairs[:, 1]
        order = np.argsort(keys, kind="stable")
        self._keys, self._ranks = np.append(keys[order], -1), np.append(order, _NONE)
        self._results = np.array([vocabulary[left + right] for left, right in rules], dtype=np.int64)
        self._letters = RaggedArray.from_rows(_letters(vocabulary, set(whole)))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Merges | None:
        """The rules of a tokenizer; None if it has none that make whole tokens of its words' characters."""
        found = tokenizer.merge_rules
        return None if found is None else cls(found.vocabulary, found.rules, whole=found.whole)

    def letters(self, words: RaggedArray) -> RaggedArray:
        """The letters of words that are given as tokens."""
        return self._letters.take(words.values).merge_rows(words.ends)

    def rank(self, left: Integers, right: Integers) -> Integers:
        """The place of the rule that merges each pair of tokens, from 0; the greatest integer where there is none."""
        keys = (left << 32) | right
        places = np.searchsorted(self._keys[:-1], keys)
        return np.where(self._keys[places] == keys, self._ranks[places], _NONE)

    def result(self, ranks: Integers) -> Integers:
        """The tokens that rules make."""
        return self._results[ranks]


def _letters(vocabulary: Mapping[str, int], whole: set[int]) -> list[list[int]]:
    letters = [[index] for index in range(max(vocabulary.values(), default=-1) + 1)]
    for token, index in vocabulary.items():
        spelled = [vocabulary.get(character, -1) for character in token]
        if index not in whole and -1 not in spelled:
            letters[index] = spelled
    return letters


def segment(words: RaggedArray, merges: Merges, *, dropout: float, keys: Indices) -> RaggedArray:
    """Merge the letters of words, leaving out merges at random.

    In each step every possible merge is left out with a probability; of the others the one of the highest rank is made,
    the leftmost where there are several. A word is done when nothing is left to merge.

    Args:
        words: their letters, at least one each.
        merges: the rules.
        dropout: the probability; with 0 the result is plain BPE, with 1 the letters.
        keys: (words,) each word's segmentation is a function of its letters and its key.

    Returns:
        Their tokens.
    """
    batches = length_batches(words.lengths(), tokens=_CELLS, ratio=1.25)
    done = [_merge(words.take(rows), merges, dropout, keys[rows]) for rows in batches]
    order = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    return RaggedArray.concatenate(done).take(np.argsort(order, kind="stable"))


class _Table:
    """Words as rows, a column for each letter and an empty one on both sides; merged letters leave holes."""

    def __init__(self, words: RaggedArray, merges: Merges) -> None:
        lengths = words.lengths()
        width = int(lengths.max()) + 2
        columns = np.arange(width)
        self._merges = merges
        self._tokens = np.full((len(lengths), width), -1, dtype=np.int64)
        self._tokens[(columns > 0) & (columns <= lengths[:, None])] = words.values
        self._next = np.tile(columns + 1, (len(lengths), 1))
        self._previous = np.tile(columns - 1, (len(lengths), 1))
        self.ranks = np.full(self._tokens.shape, _NONE)
        self.ranks[:, :-1] = merges.rank(self._tokens[:, :-1], self._tokens[:, 1:])

    def merge(self, rows: Integers, left: Integers) -> None:
        """Make one merge in each of some rows: of the token in column `left` with the one that follows it."""
        right = self._next[rows, left]
        after, before = self._next[rows, right], self._previous[rows, left]
        self._tokens[rows, left] = self._merges.result(self.ranks[rows, left])
        self._tokens[rows, right] = -1
        self._next[rows, left], self._previous[rows, after] = after, left
        self.ranks[rows, right] = _NONE
        for first, second in ((before, left), (left, after)):
            self.ranks[rows, first] = self._merges.rank(self._tokens[rows, first], self._tokens[rows, second])

    def words(self) -> RaggedArray:
        """What the letters have become."""
        kept = self._tokens >= 0
        return RaggedArray(self._tokens[kept], np.cumsum(kept.sum(axis=1)))


def _merge(words: RaggedArray, merges: Merges, dropout: float, keys: Indices) -> RaggedArray:
    table = _Table(words, merges)
    candidates = table.ranks.copy()  # those that this step has not left out
    rows, draw = np.arange(len(keys)), np.uint64(0)
    while len(rows):
        place = candidates[rows].argmin(axis=1)
        unfinished = candidates[rows, place] < _NONE
        rows, place = rows[unfinished], place[unfinished]
        with np.errstate(over="ignore"):
            draw += _STEP
        left_out = (mix(keys[rows] ^ draw) >> np.uint64(11)) < dropout * 2.0**53
        candidates[rows[left_out], place[left_out]] = _NONE
        made = rows[~left_out]
        table.merge(made, place[~left_out])
        candidates[made] = table.ranks[made]
    return table.words()
