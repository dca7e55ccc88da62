"""Parallel corpora: sentence pairs of a source and its translation, the target.

A corpus is two files whose lines correspond, or one file with source and target: tab-separated, or rows with two
columns. White space around sentences is stripped. A further file may hold the dependency heads of each source (see
`dependency_trees`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from lm.config.data import LANGUAGE_PATTERN, DataKind, FilesConfig, ParallelTextConfig
from lm.errors import InputError, UsageError
from lm.text.decode import split_lines, strip_compression_suffix
from lm.text.dependency_trees import attach_heads
from lm.text.find import find_text_files, refuse_stdin_twice
from lm.text.records import Record
from lm.text.text_file import FORMATS, TextFile, Values, read_column


@dataclass(frozen=True)
class ParallelText:
    """A source file and its translation, in two files or in one.

    Attributes:
        source: the file of sources, or of both source and target.
        target: the file of targets, unless `source` has both.
        columns: of source and target, if `source` has both.
        heads: the file of dependency heads, if there is one.
    """

    kind: ClassVar[DataKind] = "pairs"

    source: TextFile
    target: TextFile | None = None
    columns: tuple[str, str] = ("source", "target")
    heads: TextFile | None = None

    @property
    def files(self) -> tuple[TextFile, ...]:
        """Return the files of text, and of heads if there is one."""
        return tuple(file for file in (self.source, self.target, self.heads) if file is not None)

    @property
    def name(self) -> str:
        return self.source.name if self.target is None else f"{self.source.name} and {self.target.name}"

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Return the source and target language, as far as file or column names tell."""
        if self.target is not None:
            return guess_language(self.source.name), guess_language(self.target.name)
        source, target = (name if re.fullmatch(LANGUAGE_PATTERN, name) else None for name in self.columns)
        return source, target

    @property
    def notes(self) -> list[str]:
        return self.source.notes

    def records(self) -> Iterator[Record]:
        """Yield all pairs in order, including blank ones.

        Raises:
            InputError: a file is not text in its encoding, a line is not a pair or has invalid heads, or the files
                differ in length.
        """
        pairs = self.source.parsed_rows(partial(_read_pair, *self.columns), self.columns)
        if self.target is not None:
            pairs = self._two_files(self.target)
        if self.heads is None:
            yield from pairs
            return
        names, lines = (self.source.name, self.heads.name), split_lines(self.heads.text())
        parsed = attach_heads(pairs, lines, sentence=lambda pair: pair.source or "", names=names)
        for pair, found in parsed:
            yield pair._replace(dependency_heads=found)

    def _two_files(self, target: TextFile) -> Iterator[Record]:
        sources, targets = split_lines(self.source.text()), split_lines(target.text())
        for line, (first, second) in enumerate(itertools.zip_longest(sources, targets), 1):
            if first is None or second is None:
                ended = self.source.name if first is None else target.name
                raise InputError(f"{self.name}: not as many lines in both: {ended} has {line - 1:,}")
            yield Record.of_pair(first.strip(), second.strip(), line=line)


def _read_pair(source: str, target: str, values: Values, line: int) -> Record:
    return Record.of_pair(read_column(values, source).strip(), read_column(values, target).strip(), line=line)


def find_parallel_texts(
    config: ParallelTextConfig,
    reading: FilesConfig | None = None,
    *,
    source: Sequence[str] = (),
    target: Sequence[str] = (),
    pairs: Sequence[str] = (),
    heads: Sequence[str] = (),
) -> list[ParallelText]:
    """Resolve the files of a parallel corpus.

    Args:
        config: names the columns of source and target.
        reading: which files to include, and how they are read.
        source: files of sources, as for `find_text_files`.
        target: as many files of their translations, in the same order.
        pairs: files with source and target.
        heads: none, or a file of heads for each of `source`, then of `pairs`, in order.

    Raises:
        InputError: a file is missing, or a folder or glob has none.
        UsageError: the numbers of files differ, stdin is given twice, or it isn't clear which columns hold the pair.
    """
    refuse_stdin_twice([*source, *target, *pairs, *heads])
    sources, targets, trees = (find_text_files(side, reading=reading) for side in (source, target, heads))
    if len(sources) != len(targets):
        raise UsageError(f"{len(sources)} files of sources and {len(targets)} of targets")
    texts = [ParallelText(*files) for files in zip(sources, targets, strict=True)]
    columns = (config.source_column, config.target_column)
    texts += [_find_pairs(file, columns) for file in find_text_files(pairs, reading=reading)]
    if trees and len(trees) != len(texts):
        raise UsageError(f"{len(texts)} files of sources and {len(trees)} of heads")
    return [replace(text, heads=file) for text, file in itertools.zip_longest(texts, trees)]


def _find_pairs(file: TextFile, columns: tuple[str, str]) -> ParallelText:
    """Return a file of pairs: with columns of these names or numbers, or just two; text is divided at tabs."""
    if file.format in ("text", "tsv"):
        first = next(split_lines(file.text()), "").split("\t")
        header = {*columns} <= {*first} if file.reading.header is None else file.reading.header
        file = replace(file, reading=replace(file.reading, format="tsv", header=header))
    names = file.columns
    numbers = dict(enumerate(names, 1))
    found = [name if name in names else numbers.get(int(name)) if name.isdecimal() else None for name in columns]
    if None in found and len(names) == 2:
        found = [*names]
    if None in found and names:
        raise UsageError(f"{file.name}: no columns {' and '.join(columns)}; its columns are {', '.join(names[:20])}")
    return ParallelText(file, None, (found[0] or "", found[1] or ""))


def guess_language(name: str) -> str | None:
    """Return the language in a file name's suffix: `en` in train.en, train.en.gz and train.en.txt."""
    path = Path(strip_compression_suffix(name))
    if path.suffix.lower() in FORMATS:
        path = path.with_suffix("")
    suffix = path.suffix.removeprefix(".")
    return suffix if re.fullmatch(LANGUAGE_PATTERN, suffix) else None
