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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from lm.config import settings as options
from lm.config.data import LANGUAGE_PATTERN, FilesConfig, ParallelTextConfig
from lm.errors import Advice, InputError, UsageError
from lm.text import csv_tsv, json_lines, rows
from lm.text.compression import strip_compression_suffix
from lm.text.dependency_trees import DependencyHeads, attach_heads
from lm.text.normalization import BYTE_ORDER_MARK, TextChanges
from lm.text.rows import list_fields, read_text
from lm.text.text_files import (
    SUFFIXES,
    BlockCallback,
    TextFile,
    describe_utf8_files,
    find_text_files,
    refuse_stdin_twice,
)

_LINE = "line"
_SAMPLE_ROWS = 20
_HEADER_NAMES = {
    "source", "target", "src", "tgt", "trg",
    "arabic", "chinese", "czech", "danish", "dutch", "english", "estonian", "finnish", "french", "german", "greek",
    "hebrew", "hindi", "hungarian", "italian", "japanese", "korean", "latin", "latvian", "lithuanian", "norwegian",
    "persian", "polish", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish", "ukrainian",
}  # fmt: skip


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
        notes: what the user should know about how it is read.
    """

    source: TextFile
    target: TextFile | None
    fields: tuple[str, str]
    heads: TextFile | None = None
    notes: tuple[Advice, ...] = ()

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

    def pairs(self, *on_block: BlockCallback, changes: TextChanges | None = None) -> Iterator[SentencePair]:
        """Yield all pairs in order, including blank ones.

        Args:
            on_block: a callback for each of `all_files`, given each decompressed block as it is read.
            changes: records malformed rows that are left out.

        Raises:
            InputError: a file is not UTF-8 text, a line is not a pair or has invalid heads, or the files differ in
                length.
        """
        watching = on_block or (None,) * len(self.all_files)
        texts = [file.text(observer) for file, observer in zip(self.all_files, watching, strict=True)]
        pairs = (
            self._in_rows(watching[0], changes) if self.holds_rows else self._pairs(texts[: len(self.files)], changes)
        )
        if self.heads is not None:
            pairs = self._with_heads(pairs, split_text_lines(texts[-1], self.heads.name), name=self.heads.name)
        yield from pairs

    def _pairs(self, texts: Sequence[Iterator[str]], changes: TextChanges | None) -> Iterator[SentencePair]:
        if self.target is not None:
            return self._two_files(
                *(split_text_lines(text, file.name) for text, file in zip(texts, self.files, strict=True))
            )
        return self._tab_separated(split_text_lines(texts[0], self.name), changes)

    def _with_heads(self, pairs: Iterator[SentencePair], lines: Iterator[str], *, name: str) -> Iterator[SentencePair]:
        parsed = attach_heads(pairs, lines, sentence=attrgetter("source"), names=(self.source.name, name))
        return (pair._replace(heads=heads) for pair, heads in parsed)

    def _two_files(self, sources: Iterator[str], targets: Iterator[str]) -> Iterator[SentencePair]:
        for line, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
            if source is None or target is None:
                _raise_unequal_lines(self)
            yield SentencePair(source.strip(), target.strip(), line)

    def _tab_separated(self, lines: Iterator[str], changes: TextChanges | None) -> Iterator[SentencePair]:
        parsed = (
            rows.Row(number, f"{self.name}: line {number}", {_LINE: line}) for number, line in enumerate(lines, 1)
        )
        return rows.parse_rows(parsed, _parse_tab_separated, on_malformed=self.source.on_malformed(changes))

    def _in_rows(self, on_block: BlockCallback | None, changes: TextChanges | None) -> Iterator[SentencePair]:
        example = '{"%s": …, "%s": …}' % self.fields  # noqa: UP031
        parsed = self.source.rows(self.fields, example=example, on_block=on_block, changes=changes)
        return rows.parse_rows(parsed, self._parse_row, on_malformed=self.source.on_malformed(changes))

    def _parse_row(self, row: rows.Row) -> SentencePair:
        for field, setting in zip(self.fields, ("source_column", "target_column"), strict=True):
            if field not in row.values:
                hint = options.did_you_mean(field, row.values)
                problem = f"{row.where}: no field {field!r}{hint}; it has {list_fields(row.values)}"
                raise InputError(problem, settings=[setting])
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
        raise UsageError("pairs need both of their sides: name files that can be read", settings=["skip_unreadable"])
    refuse_stdin_twice([*source, *target, *pairs, *heads])
    sources, targets = (find_text_files(side, reading=reading) for side in (source, target))
    if len(sources) != len(targets):
        raise UsageError(
            f"{len(sources)} files of sources and {len(targets)} of targets: give a target for each source",
            settings=["source", "target"],
        )
    fields = (config.source_column, config.target_column)
    texts = [ParallelText(*files, fields) for files in zip(sources, targets, strict=True)]
    texts += [_single_file_text(file, fields) for file in find_text_files(pairs, reading=reading)]
    if not heads:
        return texts
    if reading is not None and reading.skip_malformed:
        raise UsageError(
            "line n of the heads belongs to pair n: remove malformed pairs from both files, instead of skipping them",
            settings=["skip_malformed", "heads"],
        )
    trees = find_text_files(heads, reading=reading)
    if len(trees) != len(texts):
        raise UsageError(
            f"{len(texts)} files of sources and {len(trees)} of heads: give heads for each file of sources",
            settings=["heads"],
        )
    return [replace(text, heads=heads_file) for text, heads_file in zip(texts, trees, strict=True)]


def _single_file_text(file: TextFile, fields: tuple[str, str]) -> ParallelText:
    if file.format in ("text", "tsv"):
        table = csv_tsv.parse_rows(file.text(), name=file.name, kind="tsv", header=False, on_malformed=lambda *_: None)
        first = next(table, None)
        if file.format == "text":
            return ParallelText(file, None, fields, notes=_note_header(first, table, file, "format=tsv"))
        names = [] if first is None else list(first.values.values())
        are_numbers = all(field.isdecimal() for field in fields)
        are_requested = fields != rows.PAIR_FIELDS and not are_numbers  # by names, which a header has
        has_header = bool(names) and (are_requested or {*fields} <= {*names})
        header = has_header if file.reading.header is None else file.reading.header
        if not header and not are_numbers:
            if len(names) > 2:
                rows.raise_unclear_pair(names, file=file.name)
            as_text = replace(file, reading=replace(file.reading, format="text"))
            return ParallelText(as_text, None, fields, notes=_note_header(first, table, file))
        notes = () if header else _note_header(first, table, file, fields=fields)
        named = replace(file, reading=replace(file.reading, header=header))
        return ParallelText(named, None, _find_pair_fields(named, fields), notes=notes)
    return ParallelText(file, None, _find_pair_fields(file, fields))


def _find_pair_fields(file: TextFile, fields: tuple[str, str]) -> tuple[str, str]:
    """Return the columns of source and target: of two below a header that the user has announced, in this order."""
    if not file.is_table or not (names := file.field_names):
        return fields
    return rows.find_pair_fields(names, fields, file=file.name, in_order=bool(file.reading.header))


def _note_header(
    first: rows.Row | None,
    others: Iterable[rows.Row],
    file: TextFile,
    *settings: str,
    fields: tuple[str, str] = ("1", "2"),
) -> tuple[Advice, ...]:
    """Return a note if the first row looks like a header, unless the user has said whether it is one.

    It does if both fields name a language or a side, or are words that are much shorter than what follows.
    """
    if file.reading.header is not None or first is None or not all(field in first.values for field in fields):
        return ()
    names = [first.values[field].strip() for field in fields]
    sample = [[row.values[field] for field in fields] for row in itertools.islice(others, _SAMPLE_ROWS)]
    lengths = [median(map(len, column)) for column in zip(*sample, strict=True)]
    are_short = lengths and all(
        re.fullmatch(r"[\w-]+", name) and 2 * len(name) < length for name, length in zip(names, lengths, strict=True)
    )
    if not are_short and not all(name.lower() in _HEADER_NAMES for name in names):
        return ()
    problem = f"the first row ({names[0]!r} and {names[1]!r}) is read as a pair, but looks like a header"
    return (Advice(f"{file.name}: {problem}; if it is one, say so", settings=[*settings, "header"]),)


def describe_reading(texts: Iterable[ParallelText]) -> list[Advice]:
    """Return notes on headers, and on files that are read as UTF-8 although another encoding is given."""
    texts = list(texts)
    notes = [note for text in texts for note in text.notes]
    return [*notes, *describe_utf8_files(file for text in texts for file in text.files)]


def split_text_lines(blocks: Iterator[str], name: str) -> Iterator[str]:
    """Yield lines without a byte order mark; a final empty line is dropped."""
    lines = json_lines.split_lines(blocks, name=name)
    pending = next(lines).removeprefix(BYTE_ORDER_MARK)
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


def _raise_unequal_lines(parallel: ParallelText) -> NoReturn:
    """Raise InputError with the line from which on the two files no longer correspond."""
    texts = [[line.strip() for line in split_text_lines(file.text(), file.name)] for file in parallel.files]
    lengths = [[len(line) for line in text] for text in texts]
    counts = " and ".join(
        f"{file.name} has {len(text):,} line{'s' * (len(text) != 1)}"
        for file, text in zip(parallel.files, texts, strict=True)
    )
    longer, shorter = sorted(lengths, key=len, reverse=True)
    together = find_misalignment(longer, shorter)
    if together == len(shorter):
        name = parallel.files[lengths.index(shorter)].name
        where = f"they belong together up to line {together:,}, where {name} ends"
    else:
        shown = " / ".join(rows.shorten(text[together]) for text in texts)
        where = f"they come apart at or near line {together + 1:,} ({shown})"
    raise InputError(f"{counts}: line n of one must be the translation of line n of the other; {where}")


Floats = NDArray[np.float64]

_OFFSETS = 8  # the most lines that are sought as missing one by one, in different places
_SHIFT = 3.0  # what a shift costs: as much as some fifteen lines that fit badly
_WORST = 4.0  # the most that one line counts, however badly it fits


def find_misalignment(longer: Sequence[int], shorter: Sequence[int]) -> int:
    """Return how many initial lines of two misaligned texts correspond.

    A sentence and its translation have similar lengths. A line pair fits the better, the nearer the logarithm of its
    length ratio is to the median. The longer text is shifted one line at a time, or once by all surplus lines, where
    the total fit is best. The result, the position of the first shift, may be a few lines off.

    Args:
        longer: line lengths of the text with more lines.
        shorter: line lengths of the other text.

    Returns:
        From 0 to the number of lines of the shorter text, which means that its end is missing.

    Source: Gale and Church 1993 (length-based alignment), Viterbi 1967 (best path).
    """
    lines, surplus = len(shorter), len(longer) - len(shorter)
    if not lines:
        return 0
    more, less = (np.log1p(np.asarray(lengths, dtype=np.float64)) for lengths in (longer, shorter))
    usual = float(np.median(more[:lines] - less))
    offsets = [*range(min(surplus, _OFFSETS) + 1), *([surplus] if surplus > _OFFSETS else [])]
    totals = [_cumulative_fit(more[offset : offset + lines], less, usual) for offset in offsets]
    return _first_shift_on_best_path(totals)


def _cumulative_fit(more: Floats, less: Floats, default_ratio: float) -> Floats:
    """Return (lines + 1,) cumulative costs of the first 0, 1, … lines; 0 is best."""
    return np.append(0.0, -np.cumsum(np.minimum((more - less - default_ratio) ** 2, _WORST)))


def _first_shift_on_best_path(totals: list[Floats]) -> int:
    """Return the first shift of the best path from offset 0 through increasing offsets."""
    best, first = totals[0], np.full(len(totals[0]), len(totals[0]) - 1)
    score, answer = best[-1], int(first[-1])
    for number, total in enumerate(totals[1:]):
        gains = best - total - _SHIFT  # of a shift after each line
        highest = np.maximum.accumulate(gains)
        best_index = np.maximum.accumulate(np.where(gains == highest, np.arange(len(gains)), 0))
        first = best_index if number == 0 else first[best_index]
        best = highest + total
        if best[-1] > score:
            score, answer = best[-1], int(first[-1])
    return answer
