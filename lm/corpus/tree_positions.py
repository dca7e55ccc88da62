"""Token positions in dependency trees.

A token becomes four integers: its ID and the three of `lm.text.dependency_trees.compute_tree_positions`, shared by all
tokens of a word, so that a source remains one array. Special tokens are outside the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.text.dependency_trees import TreePositions, compute_tree_positions
from lm.text.records import Record
from lm.tokenizer.offsets import TokenOffsets, assign_word_indices
from lm.tokenizer.special_tokens import SpecialTokenFrame
from lm.tokenizer.tokenizer import Tokenizer

Integers = NDArray[np.int64]
Ids = Sequence[int] | NDArray[Any]

OUTSIDE_TREE = (-1, -1, -1)
"""The tree position of special tokens."""


class TreeReader:
    """Maps tokens to words and their tree positions."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._offsets = TokenOffsets(tokenizer)

    def words(self, sentence: str, ids: Ids) -> Integers:
        """Return (tokens,) word indices, from 0; see `assign_word_indices`."""
        ids = np.asarray(ids)
        ends = self._offsets.ends(Record.of_text(sentence), ids).tolist() if len(ids) else []
        return np.array(assign_word_indices(sentence, ends), dtype=np.int64)

    def read(self, sentence: str, ids: Ids, heads: Sequence[int]) -> Integers:
        """Return (tokens, 4) tokens of a sentence with the tree positions of their words."""
        return attach_positions(ids, compute_tree_positions(heads)[self.words(sentence, ids)])


def attach_positions(ids: Ids, positions: TreePositions) -> Integers:
    """Return (tokens, 4) IDs with tree positions."""
    return np.concatenate([np.asarray(ids, dtype=np.int64)[:, None], positions], axis=1)


def attach_outside(ids: Sequence[int]) -> Integers:
    """Return (tokens, 4) special tokens, outside the tree."""
    return np.array([(index, *OUTSIDE_TREE) for index in ids], dtype=np.int64).reshape(-1, 1 + len(OUTSIDE_TREE))


def wrap_sources(sources: RaggedArray, frame: SpecialTokenFrame) -> RaggedArray:
    """Add special tokens to sources, with or without trees."""
    if sources.values.ndim == 1:
        return sources.wrap_rows(frame.before, frame.after)
    return sources.wrap_rows(attach_outside(frame.before), attach_outside(frame.after))
