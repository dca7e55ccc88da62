"""Parallel corpora: sentence pairs of a source and its translation, the target; dependency trees of sources.

A tree is a line of heads, as written by an external parser: for each whitespace-separated word the index of its head
from 1, or 0 for the root.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import DataConfig, DataKind, FilesConfig
from lm.errors import InputError, UsageError
from lm.text import Record
from lm.text.decode import split_lines, strip_compression_suffix
from lm.text.find import find_text_files
from lm.text.text_file import FORMATS, TextFile, match_languages

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


@dataclass(frozen=True)
class ParallelText:
    """A source file and its translation, line by line.

    Attributes:
        heads: the file of dependency heads, if there is one.
    """

    kind: ClassVar[DataKind] = "pairs"

    source: TextFile
    target: TextFile
    heads: TextFile | None = None

    @property
    def files(self) -> tuple[TextFile, ...]:
        """Return the files of text, and of heads if there is one."""
        return (self.source, self.target) + (() if self.heads is None else (self.heads,))

    @property
    def name(self) -> str:
        return f"{self.source.name} and {self.target.name}"

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Return the source and target language, as far as the file names tell."""
        return match_languages(_suffix(self.source.name), _suffix(self.target.name))

    @property
    def notes(self) -> list[str]:
        return self.source.notes

    def records(self) -> Iterator[Record]:
        """Yield all pairs in order, including blank ones.

        Raises:
            InputError: a file is not text in its encoding, a line has invalid heads, or the files differ in length.
        """
        for line, texts in enumerate(itertools.zip_longest(*(split_lines(file.text()) for file in self.files)), 1):
            if None in texts:
                ended = self.files[texts.index(None)].name
                raise InputError(f"{self.name}: not as many lines in all files: {ended} has {line - 1:,}")
            source, target, *heads = (text.strip() for text in texts)
            trees = [parse_heads(each, source, where=f"{self.files[2].name}: line {line}") for each in heads]
            yield Record.of_pair(source, target, line=line)._replace(dependency_heads=next(iter(trees), None))


Source = TextFile | ParallelText


def find_sources(
    names: Sequence[str] = (),
    data: DataConfig | None = None,
    reading: FilesConfig | None = None,
    *,
    source: Sequence[str] = (),
    target: Sequence[str] = (),
    heads: Sequence[str] = (),
) -> list[Source]:
    """Resolve the files of a corpus: each alone, or source and target.

    Args:
        names: files of text, rows or pairs, as for `find_text_files`.
        data: names their columns.
        reading: which files to include, and how they are read.
        source: files of sources, as for `find_text_files`; a file may be named again, with another target.
        target: as many files of their translations, in the same order.
        heads: none, or a file of heads for each of `source`, in order.

    Raises:
        InputError: a file is missing, or a folder or glob has none.
        UsageError: the numbers of files differ.
    """
    sources, targets, trees = (
        [file for name in side for file in find_text_files([name], reading=reading)] for side in (source, target, heads)
    )
    for noun, others in (("targets", targets), ("heads", trees or sources)):
        if len(sources) != len(others):
            raise UsageError(f"{len(sources)} files of sources and {len(others)} of {noun}")
    texts = itertools.starmap(ParallelText, itertools.zip_longest(sources, targets, trees))
    return [*find_text_files(names, data, reading), *texts]


def _suffix(name: str) -> str:
    """Return the suffix of a file name that may be a language: `en` of train.en, train.en.gz and train.en.txt."""
    path = Path(strip_compression_suffix(name))
    return (path.with_suffix("") if path.suffix.lower() in FORMATS else path).suffix[1:]
