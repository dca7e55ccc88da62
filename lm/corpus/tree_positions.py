"""Sources that come with dependency trees: each token beside where its word stands in the tree of its sentence.

A token is then four integers, its id and the three of `lm.text.dependency_trees.compute_tree_positions`, which all
tokens of a word share; so a source remains one array, however it is cut, sorted and padded. Special tokens stand
outside the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.text.dependency_trees import TreePositions, compute_tree_positions
from lm.tokenizer.offsets import TokenOffsets, assign_word_indices
from lm.tokenizer.special_tokens import SpecialTokenFrame
from lm.tokenizer.tokenizer import TextPiece, Tokenizer

Integers = NDArray[np.int64]
Ids = Sequence[int] | NDArray[Any]

OUTSIDE_TREE = (-1, -1, -1)
"""The place of a token that is no part of a sentence."""


class TreeReader:
    """Finds the words of tokens, and where they stand in their trees."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the tokens that `tokenizer` makes."""
        self._offsets = TokenOffsets(tokenizer)

    def words(self, sentence: str, ids: Ids) -> Integers:
        """(tokens,) the number of each token's word in a sentence, from 0; see `assign_word_indices`."""
        ids = np.asarray(ids)
        ends = self._offsets.ends(TextPiece(sentence, True), ids).tolist() if len(ids) else []
        return np.array(assign_word_indices(sentence, ends), dtype=np.int64)

    def read(self, sentence: str, ids: Ids, heads: Sequence[int]) -> Integers:
        """(tokens, 4) the tokens of a sentence, each beside the place of its word."""
        return attach_positions(ids, compute_tree_positions(heads)[self.words(sentence, ids)])


def attach_positions(ids: Ids, places: TreePositions) -> Integers:
    """(tokens, 4) ids and the places of their words."""
    return np.concatenate([np.asarray(ids, dtype=np.int64)[:, None], places], axis=1)


def attach_outside(ids: Sequence[int]) -> Integers:
    """(tokens, 4) special tokens."""
    return np.array([(index, *OUTSIDE_TREE) for index in ids], dtype=np.int64).reshape(-1, 1 + len(OUTSIDE_TREE))


def wrap_sources(sources: RaggedArray, frame: SpecialTokenFrame) -> RaggedArray:
    """Sources within their frame, whether they come with trees or not."""
    if sources.values.ndim == 1:
        return sources.framed(frame.before, frame.after)
    return sources.framed(attach_outside(frame.before), attach_outside(frame.after))
