"""Dependency trees of sentences, one line of heads per sentence, as written by an external parser.

A line has a number for each whitespace-separated word: the index of its head from 1, or 0 for the root.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lm.errors import InputError

T = TypeVar("T")

DependencyHeads = tuple[int, ...]
"""The head of each word of a sentence, from 1; 0 for the root."""

TreePositions = NDArray[np.int64]
"""(words, 3) tree positions: see `compute_tree_positions`."""


def parse_heads(line: str, sentence: str, *, where: str) -> DependencyHeads:
    """Parse and validate the heads of a sentence.

    Args:
        line: whitespace-separated heads.
        where: file and line, for messages.

    Raises:
        InputError: they are not integers, not one per word, or not a tree.
    """
    try:
        heads = tuple(map(int, line.split()))
    except ValueError:
        raise InputError(f"{where}: heads are word numbers from 1, or 0 for the root") from None
    check_heads(heads, sentence, where=where)
    return heads


def attach_heads(
    sentences: Iterable[T], lines: Iterable[str], *, sentence: Callable[[T], str], names: tuple[str, str]
) -> Iterator[tuple[T, DependencyHeads]]:
    """Pair sentences with their heads, line by line.

    Args:
        sentences: objects with a sentence each.
        lines: of heads.
        sentence: returns the sentence of such an object.
        names: of the sentence file and the heads file, for messages.

    Raises:
        InputError: a line is not a tree of its sentence, or the numbers of lines differ.
    """
    for number, (item, line) in enumerate(itertools.zip_longest(sentences, lines), 1):
        if line is None or item is None:
            raise InputError(f"{' and '.join(names)}: one of them ends before line {number:,}")
        yield item, parse_heads(line, sentence(item), where=f"{names[1]}: line {number}")


def check_heads(heads: Sequence[int], sentence: str, *, where: str) -> None:
    """Raise InputError unless the heads form one tree over the words of a sentence; `where` is for the message."""
    words = len(sentence.split())
    is_tree = len(heads) == words and all(0 <= head <= words for head in heads) and len(_preorder(heads)) == words
    if not is_tree or (heads and heads.count(0) != 1):
        raise InputError(
            f"{where}: {len(heads):,} heads, which are no tree of {words:,} words: one has the head 0, each other that "
            "of a word above"
        )


def compute_tree_positions(heads: Sequence[int]) -> TreePositions:
    """Compute the position of each word in its tree.

    Words are numbered in preorder, from 0. Word a dominates word b if b's number is in a's interval.

    Args:
        heads: of a valid tree (`check_heads`).

    Returns:
        (words, 3): depth, preorder number, and the end of the interval of its subtree.
    """
    order = _preorder(heads)
    positions = np.zeros((len(heads) + 1, 3), dtype=np.int64)
    positions[0, 0] = -1
    for number, word in enumerate(order):
        positions[word] = positions[heads[word - 1], 0] + 1, number, number + 1
    for word in reversed(order):
        above = heads[word - 1]
        positions[above, 2] = max(positions[above, 2], positions[word, 2])
    return positions[1:]


def _preorder(heads: Sequence[int]) -> list[int]:
    """Return the words reachable from the root, each before its dependents."""
    order, waiting = [], [0]
    while waiting:
        order.append(waiting.pop())
        waiting += [word for word in range(len(heads), 0, -1) if heads[word - 1] == order[-1]]
    return order[1:]
