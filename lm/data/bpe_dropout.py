"""BPE dropout: merges are skipped at random, so that a model sees words in many segmentations.

The generator of `tokenizers` cannot be seeded; here a segmentation is a pure function of a key, so that training is
reproducible and resumable. Many words are merged at once with array operations.

Source: Provilkov et al. 2020, algorithm 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.data.batch import length_batches
from lm.pseudorandom import Indices, hash64
from lm.tokenizer.tokenizer import MergeRules

Integers = NDArray[np.int64]

_NO_RULE = np.iinfo(np.int64).max
"""Rank of a pair without a merge rule."""

_BATCH_CHARACTERS = 1 << 16  # characters per batch, including padding: few enough for words of similar length
_STEP = np.uint64(0x9E3779B97F4A7C15)


class DropoutMerges:
    """Merge rules of a BPE vocabulary, and the characters that its tokens are merged from.

    A token that cannot be spelled with single-character tokens, such as an added token, is not split.
    """

    def __init__(self, merge_rules: MergeRules) -> None:
        vocabulary, rules = merge_rules.vocabulary, merge_rules.rules
        keys = np.array([(vocabulary[left] << 32) | vocabulary[right] for left, right in rules], dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        self._keys, self._ranks = np.append(keys[order], -1), np.append(order, _NO_RULE)
        self.results = np.array([vocabulary[left + right] for left, right in rules], dtype=np.int64)
        spelled = [[index] for index in range(max(vocabulary.values(), default=-1) + 1)]
        for token, index in vocabulary.items():
            characters = [vocabulary.get(character, -1) for character in token]
            if index not in merge_rules.whole and -1 not in characters:
                spelled[index] = characters
        self._characters = RaggedArray.from_rows(spelled)

    def characters(self, words: RaggedArray) -> RaggedArray:
        """Return the characters of words that are given as tokens."""
        return self._characters.take(words.values).merge_rows(words.ends)

    def ranks(self, left: Integers, right: Integers) -> Integers:
        """Return the rank of the rule that merges each pair of tokens, or the largest integer without one."""
        keys = (left << 32) | right
        indices = np.searchsorted(self._keys[:-1], keys)
        return np.where(self._keys[indices] == keys, self._ranks[indices], _NO_RULE)


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
    batches = length_batches(words.lengths(), tokens=_BATCH_CHARACTERS)
    done = [_merge_words(words.take(rows), merges, dropout, keys[rows]) for rows in batches]
    order = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    return RaggedArray.concatenate(done).take(np.argsort(order, kind="stable"))


def _merge_words(words: RaggedArray, merges: DropoutMerges, dropout: float, keys: Indices) -> RaggedArray:
    """Merge words as linked lists in rows of arrays, with an empty column on both sides."""
    lengths = words.lengths()
    columns = np.arange(int(lengths.max()) + 2)
    tokens = np.full((len(lengths), len(columns)), -1, dtype=np.int64)
    tokens[(columns > 0) & (columns <= lengths[:, None])] = words.values
    following, preceding = (np.tile(columns + step, (len(lengths), 1)) for step in (1, -1))
    ranks = np.full(tokens.shape, _NO_RULE)
    ranks[:, :-1] = merges.ranks(tokens[:, :-1], tokens[:, 1:])
    candidates = ranks.copy()  # not skipped in this step
    rows, draw = np.arange(len(keys)), np.uint64(0)
    while len(rows):
        left = candidates[rows].argmin(axis=1)
        unfinished = candidates[rows, left] < _NO_RULE
        rows, left = rows[unfinished], left[unfinished]
        with np.errstate(over="ignore"):
            draw += _STEP
        skipped = (hash64(keys[rows] ^ draw) >> np.uint64(11)) < dropout * 2.0**53
        candidates[rows[skipped], left[skipped]] = _NO_RULE
        merged, left = rows[~skipped], left[~skipped]
        right = following[merged, left]
        after, before = following[merged, right], preceding[merged, left]
        tokens[merged, left], tokens[merged, right] = merges.results[ranks[merged, left]], -1
        following[merged, left], preceding[merged, after] = after, left
        ranks[merged, right] = _NO_RULE
        for first, second in ((before, left), (left, after)):
            ranks[merged, first] = merges.ranks(tokens[merged, first], tokens[merged, second])
        candidates[merged] = ranks[merged]
    kept = tokens >= 0
    return RaggedArray(tokens[kept], np.cumsum(kept.sum(axis=1)))
