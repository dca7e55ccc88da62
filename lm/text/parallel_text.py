"""Parallel corpora: sentence pairs of a source and its translation, the target.

A corpus is two files whose lines correspond, or one file with source and target: tab-separated, or rows with two fields
(JSON, CSV, TSV with a header, Parquet). Files may be compressed. White space around sentences is stripped, so carriage
returns, a byte order mark and a final line feed make no difference. A further file may hold the dependency heads of
each source (see `dependency_trees`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from lm.config.data import LANGUAGE_PATTERN, FilesConfig, ParallelTextConfig
from lm.errors import InputError, UsageError
from lm.text import csv_tsv, json_lines, rows
from lm.text.compression import strip_compression_suffix
from lm.text.dependency_trees import DependencyHeads, attach_heads
from lm.text.rows import read_text
from lm.text.text_files import SUFFIXES, BlockCallback, TextFile, find_text_files, refuse_stdin_twice

_LINE = "line"


class SentencePair(NamedTuple):
    """A source, its translation, their line number from 1, and the dependency heads of the source, if given."""

    source: str
    target: str
    line: int
    heads: DependencyHeads | None = None

    def to_json(self) -> str:
        heads = {} if self.heads is None else {"heads": self.heads}
        return json.dumps({"source": self.source, "target": self.target, **heads}, ensure_ascii=False)


@dataclass(frozen=True)
class ParallelText:
    """A source file and its translation, in two files or in one.

    Attributes:
        source: the file of sources, or of both source and target.
        target: the file of targets, unless `source` holds both.
        fields: the fields of source and target in rows.
        heads: the file of dependency heads, if there is one.
    """

    source: TextFile
    target: TextFile | None
    fields: tuple[str, str]
    heads: TextFile | None = None

    @property
    def files(self) -> tuple[TextFile, ...]:
        """Return the one or two text files."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def all_files(self) -> tuple[TextFile, ...]:
        return self.files if self.heads is None else (*self.files, self.heads)

    @property
    def name(self) -> str:
        return " and ".join(file.name for file in self.files)

    @property
    def holds_rows(self) -> bool:
        """Return whether it is one file of rows with fields."""
        return self.target is None and self.source.holds_rows

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Return the source and target language, as far as file or field names tell."""
        if self.target is not None:
            return guess_language(self.source.name), guess_language(self.target.name)
        first, second = (name if re.fullmatch(LANGUAGE_PATTERN, name) else None for name in self.fields)
        return (first, second) if self.holds_rows else (None, None)

    def pairs(self, *on_block: BlockCallback) -> Iterator[SentencePair]:
        """Yield all pairs in order, including blank ones.

        Args:
            on_block: a callback for each of `all_files`, given each decompressed block as it is read.

        Raises:
            InputError: a file is not UTF-8 text, a line is not a pair or has invalid heads, or the files differ in
                length.
        """
        watching = on_block or (None,) * len(self.all_files)
        texts = [file.text(observer) for file, observer in zip(self.all_files, watching, strict=True)]
        pairs = self._in_rows(watching[0]) if self.holds_rows else self._pairs(texts[: len(self.files)])
        if self.heads is not None:
            pairs = self._with_heads(pairs, split_text_lines(texts[-1], self.heads.name), name=self.heads.name)
        yield from pairs

    def _pairs(self, texts: Sequence[Iterator[str]]) -> Iterator[SentencePair]:
        if self.target is not None:
            return self._two_files(
                *(split_text_lines(text, file.name) for text, file in zip(texts, self.files, strict=True))
            )
        return self._tab_separated(split_text_lines(texts[0], self.name))

    def _with_heads(self, pairs: Iterator[SentencePair], lines: Iterator[str], *, name: str) -> Iterator[SentencePair]:
        parsed = attach_heads(pairs, lines, sentence=attrgetter("source"), names=(self.source.name, name))
        return (pair._replace(heads=heads) for pair, heads in parsed)

    def _two_files(self, sources: Iterator[str], targets: Iterator[str]) -> Iterator[SentencePair]:
        for line, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
            if source is None or target is None:
                ended = self.files[0 if source is None else 1].name
                raise InputError(f"{self.name}: not as many lines in both: {ended} has {line - 1:,}")
            yield SentencePair(source.strip(), target.strip(), line)

    def _tab_separated(self, lines: Iterator[str]) -> Iterator[SentencePair]:
        parsed = (
            rows.Row(number, f"{self.name}: line {number}", {_LINE: line}) for number, line in enumerate(lines, 1)
        )
        return rows.parse_rows(parsed, _parse_tab_separated, on_malformed=self.source.on_malformed)

    def _in_rows(self, on_block: BlockCallback | None) -> Iterator[SentencePair]:
        parsed = self.source.rows(self.fields, on_block)
        return rows.parse_rows(parsed, self._parse_row, on_malformed=self.source.on_malformed)

    def _parse_row(self, row: rows.Row) -> SentencePair:
        source, target = (read_text(row, field).strip() for field in self.fields)
        return SentencePair(source, target, row.number)


def _parse_tab_separated(row: rows.Row) -> SentencePair:
    line: str = row.values[_LINE]
    if line.strip() and (tabs := line.count("\t")) != 1:
        raise InputError(f"{row.where} has {tabs} tabs; each line is a source, one tab and its target")
    source, _, target = line.partition("\t")
    return SentencePair(source.strip(), target.strip(), row.number)


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
        config: names the fields of source and target in rows.
        reading: which files to include, and how they are read.
        source: files of sources, as for `find_text_files`.
        target: as many files of their translations, in the same order.
        pairs: files with source and target.
        heads: none, or a file of heads for each of `source`, then of `pairs`, in order.

    Raises:
        InputError: a file is missing, or a folder or glob has none.
        UsageError: the numbers of files differ, stdin is given twice, or it isn't clear which columns hold the pair.
    """
    if reading is not None and reading.skip_unreadable:
        raise UsageError("pairs need both of their sides: name files that can be read")
    refuse_stdin_twice([*source, *target, *pairs, *heads])
    sources, targets = (find_text_files(side, reading=reading) for side in (source, target))
    if len(sources) != len(targets):
        raise UsageError(
            f"{len(sources)} files of sources and {len(targets)} of targets: give a target for each source"
        )
    fields = (config.source_column, config.target_column)
    texts = [ParallelText(*files, fields) for files in zip(sources, targets, strict=True)]
    texts += [_single_file_text(file, fields) for file in find_text_files(pairs, reading=reading)]
    if not heads:
        return texts
    if reading is not None and reading.skip_malformed:
        raise UsageError(
            "line n of the heads belongs to pair n: remove malformed pairs from both files, instead of skipping them"
        )
    trees = find_text_files(heads, reading=reading)
    if len(trees) != len(texts):
        raise UsageError(
            f"{len(texts)} files of sources and {len(trees)} of heads: give heads for each file of sources"
        )
    return [replace(text, heads=heads_file) for text, heads_file in zip(texts, trees, strict=True)]


def _single_file_text(file: TextFile, fields: tuple[str, str]) -> ParallelText:
    if file.format != "tsv":
        return ParallelText(file, None, _find_pair_fields(file, fields))
    table = csv_tsv.parse_rows(file.text(), name=file.name, kind="tsv", header=False, on_malformed=lambda *_: None)
    first = next(table, None)
    names = [] if first is None else list(first.values.values())
    are_numbers = all(field.isdecimal() for field in fields)
    are_requested = fields != rows.PAIR_FIELDS and not are_numbers  # by names, which a header has
    has_header = bool(names) and (are_requested or {*fields} <= {*names})
    header = has_header if file.reading.header is None else file.reading.header
    if not header and not are_numbers:
        if len(names) > 2:
            raise UsageError(f"{file.name}: which columns hold source and target? Set source_column and target_column")
        return ParallelText(replace(file, reading=replace(file.reading, format="text")), None, fields)
    named = replace(file, reading=replace(file.reading, header=header))
    return ParallelText(named, None, _find_pair_fields(named, fields))


def _find_pair_fields(file: TextFile, fields: tuple[str, str]) -> tuple[str, str]:
    """Return the columns of source and target: of two below a header that the user has announced, in this order."""
    if not file.is_table or not (names := file.field_names):
        return fields
    return rows.find_pair_fields(names, fields, file=file.name, in_order=bool(file.reading.header))


def split_text_lines(blocks: Iterator[str], name: str) -> Iterator[str]:
    """Yield lines without a byte order mark; a final empty line is dropped."""
    lines = json_lines.split_lines(blocks, name=name)
    pending = next(lines)
    for line in lines:
        yield pending
        pending = line
    if pending:
        yield pending


def guess_language(name: str) -> str | None:
    """Return the language in a file name's suffix: `en` in train.en, train.en.gz and train.en.txt."""
    path = Path(strip_compression_suffix(name))
    if path.suffix.lower() in SUFFIXES:
        path = path.with_suffix("")
    suffix = path.suffix.removeprefix(".")
    return suffix if re.fullmatch(LANGUAGE_PATTERN, suffix) else None
