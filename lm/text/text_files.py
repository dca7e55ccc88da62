"""Find and read text files: paths, folders, globs and stdin, decompressed and decoded in bounded memory.

Files may be compressed (`detect_compression`). Stdin and pipes can be read only once, so they are copied to a temporary
file first. Text is UTF-8 unless an encoding is given; line ends are normalised by `lm.text.normalization`. Rows are
objects of JSON Lines or a JSON array, or rows of CSV, TSV and Parquet.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import fnmatch
import glob
import itertools
import logging
import os
import re
import sys
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from lm.config.data import DataConfig, FilesConfig, Format
from lm.errors import Advice, InputError, UsageError
from lm.text import conversations, csv_tsv, examples, json_lines, parquet, rows
from lm.text.compression import detect_compression, read_blocks, read_plain, strip_compression_suffix
from lm.text.conversations import CONVERSATION_FIELDS, Conversation
from lm.text.encodings import UnreadableError, decoding_error, is_non_ascii_utf8, refuse_utf16
from lm.text.examples import Example
from lm.text.normalization import (
    GutenbergStripper,
    LineEndNormalizer,
    TextChanges,
    describe_malformed,
    is_gutenberg,
    uses_carriage_returns,
)
from lm.text.rows import FIELD, MalformedRowCallback, Row, raise_skippable

F = TypeVar("F")

_LOG = logging.getLogger(__name__)


STDIN = "-"
ROW_SUFFIXES = (*json_lines.SUFFIXES, *csv_tsv.SUFFIXES, parquet.SUFFIX)
SUFFIXES = (".txt", ".text", ".md", *ROW_SUFFIXES)
"""Suffixes of files read from folders, compressed or not, besides `.json` files with arrays of objects; files and globs
may have any suffix."""

BLOCK_BYTES = 1 << 18

_MAX_FIRST_LINE = 1 << 24
_NAMED_UNREADABLE, _NAMED_SUFFIXES, _SHOWN_REASONS = 10, 3, 3

BlockCallback = Callable[[bytes], None]
"""Called with each decompressed block of a file as it is read."""

ProgressCallback = Callable[[int, int | None], None]
"""Called with the bytes done, and the total if known."""


@dataclass(frozen=True)
class FileRange:
    """Part of a file, from the start of one document to the end of another: bytes, or row groups of a Parquet file."""

    start: int
    stop: int


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus.

    Attributes:
        name: as the user wrote it, for messages.
        path: where its bytes are; for stdin and pipes a temporary copy.
        data: which fields are text, whether rows are supervised examples, and how line ends are treated.
        temporary_copy: the copy of stdin or a pipe, deleted with the last TextFile that refers to it.
        malformed_rows: numbers of the rows that were left out, unless `changes` recorded them.
    """

    name: str
    path: Path
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    reading: FilesConfig = dataclasses.field(default_factory=FilesConfig)
    temporary_copy: _TemporaryFile | None = dataclasses.field(default=None, repr=False, compare=False)
    malformed_rows: set[int] = dataclasses.field(default_factory=set, repr=False, compare=False)

    @cached_property
    def format(self) -> Format:
        """Return the format from the settings, the suffix or, for stdin and pipes, the first line."""
        if self.reading.format is not None:
            return self.reading.format
        if self.temporary_copy is not None:
            return self._format_of_pipe()
        if self.name.lower().endswith(parquet.SUFFIX):
            return "parquet"
        name = strip_compression_suffix(self.name).lower()
        if name.endswith(json_lines.ARRAY_SUFFIX) and self._first_object is None:
            return "json"
        if name.endswith((*json_lines.SUFFIXES, json_lines.ARRAY_SUFFIX)):
            return "jsonl"
        return next((kind for suffix, kind in csv_tsv.SUFFIXES.items() if name.endswith(suffix)), "text")

    def _format_of_pipe(self) -> Format:
        with self.path.open("rb") as stream:
            if stream.read(len(parquet.MAGIC_BYTES)) == parquet.MAGIC_BYTES:
                return "parquet"
        values = self._first_object or {}
        is_text = isinstance(values.get(self.data.text_column or FIELD), str)
        return "jsonl" if is_text or conversations.are_conversation_values(values) else "text"

    @cached_property
    def _first_object(self) -> Mapping[str, Any] | None:
        """Return the fields of the JSON object in the first line; None if that is something else."""
        return json_lines.parse_first_line(_read_first_line(self))

    @cached_property
    def encoding(self) -> str:
        """Return the given encoding, or UTF-8 for a file with non-ASCII characters in valid UTF-8."""
        if codecs.lookup(self.reading.encoding).name.startswith("utf-8") or self.is_parquet:
            return self.reading.encoding
        with contextlib.suppress(InputError, OSError):  # reported when it is read
            kind = detect_compression(self.path, self.name)
            if is_non_ascii_utf8(read_blocks(self.path, kind, BLOCK_BYTES, name=self.name)):
                return "utf-8"
        return self.reading.encoding

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name == "utf-8"

    @property
    def is_parquet(self) -> bool:
        return self.format == "parquet"

    @property
    def holds_rows(self) -> bool:
        """Return whether the file consists of rows with fields, one document each."""
        return self.format != "text"

    @property
    def is_table(self) -> bool:
        """Return whether it is CSV or TSV, whose first row may be a header."""
        return self.format in ("csv", "tsv")

    @property
    def supervised(self) -> bool:
        return self.data.supervised

    @cached_property
    def holds_examples(self) -> bool:
        """Return whether its rows are examples by their field names; text from a pipe may have rows, too."""
        if self.format == "text" and self.temporary_copy is None:
            return False
        if self.format == "text" or (self.format == "jsonl" and self.data.label_column is None):
            return examples.has_example_fields(self._first_object or {})
        if examples.has_example_fields(self.field_names):
            return True
        try:
            return self.label_fields is not None
        except UsageError:
            return False

    @cached_property
    def holds_conversations(self) -> bool:
        """Return whether its rows are conversations by their field names, and no field is named; not if unreadable."""
        if self.data.text_column is not None or self.data.label_column is not None:
            return False
        with contextlib.suppress(InputError, OSError):
            if self.format == "jsonl":
                return conversations.are_conversation_values(self._first_object or {})
            if self.format == "json" and self._first_row is not None:
                return conversations.are_conversation_values(self._first_row.without_nulls().values)
            if self.is_parquet:
                return FIELD not in self.field_names and conversations.has_conversation_fields(self.field_names)
        return False

    @cached_property
    def field_names(self) -> Sequence[str]:
        """Return the column names, or the field names of the first row; empty without rows."""
        if self.is_parquet:
            return parquet.read_columns(self.path, name=self.name)
        return () if self._first_row is None else list(self._first_row.values)

    @cached_property
    def _first_row(self) -> Row | None:
        return next(self.rows((), example=json_lines.example_document_line(FIELD)), None)

    @cached_property
    def text_field(self) -> str:
        """Return the field that holds the text; UsageError if it isn't clear."""
        requested, names = self.data.text_column, self.field_names
        if self.is_table and names:
            return rows.find_text_field(names, requested, file=self.name)
        field = rows.guess_text_field(names, requested) or requested  # a row without the field is refused by itself
        if field is None and names:
            rows.raise_unclear_field(names, file=self.name)
        return field or FIELD

    @cached_property
    def label_fields(self) -> tuple[str, str] | None:
        """Return the fields of text and label; None if rows use the field names of examples."""
        requested, names = (self.data.text_column, self.data.label_column), set(self.field_names)
        if requested == (None, None):
            has_usual = examples.has_example_fields(names) or not rows.has_label_fields(self.field_names)
            is_open = self.format in ("text", "jsonl", "parquet") and has_usual
            if is_open or not names or examples.has_example_form(names):
                return None
        return rows.find_label_fields(self.field_names, *requested, file=self.name, is_table=self.is_table)

    def __getstate__(self) -> dict[str, Any]:
        """Record the format. Another process doesn't delete a temporary copy: its finalizer is not pickled."""
        return {**self.__dict__, "format": self.format}

    def read_as(self, changes: TextChanges) -> str:
        """Describe non-default decoding, given the normalisation changes; empty for the default."""
        notes = []
        if self.holds_rows and self.format not in ("jsonl", "parquet"):
            notes.append(f"format={self.format}" + (" header=no" if not self._has_header else ""))
        if not self.is_utf8 and not self.is_parquet:
            notes.append(f"encoding={self.encoding.lower()}")
        if changes.line_ends or changes.mark:
            notes.append("line_ends=lf")
        if changes.is_book and self.data.strip_gutenberg:
            notes.append("gutenberg=stripped")
        if changes.malformed:
            notes.append(f"malformed={changes.malformed} skipped")
        return " ".join(notes)

    @property
    def _has_header(self) -> bool:
        return self.reading.header is not False

    def text(
        self,
        on_block: BlockCallback | None = None,
        file_range: FileRange | None = None,
        changes: TextChanges | None = None,
    ) -> Iterator[str]:
        """Yield the decoded, normalised text in blocks.

        Args:
            on_block: called with each block of bytes as it is read.
            file_range: the part to read, of an uncompressed file [default: the whole file].
            changes: records what normalisation finds.

        Raises:
            InputError: the file is not text in its encoding, or is damaged.
        """
        changes = TextChanges() if changes is None else changes
        feeds: LineEndNormalizer | None = None
        book: GutenbergStripper | None = None
        is_first = True
        for text, is_last in self._decoded(on_block, file_range):
            part = text
            changes.escapes += text.count("\x1b")
            if not self.data.keep_line_ends:
                if is_first:
                    returns = (
                        bool(text)
                        and "\n" not in text
                        and uses_carriage_returns(text for text, _ in self._decoded(None, None))
                    )
                    # line ends between rows are no text, and those within are changed there
                    if returns or not self.holds_rows:
                        feeds = LineEndNormalizer(
                            changes, returns=returns, is_beginning=file_range is None or file_range.start == 0
                        )
                part = text if feeds is None else feeds.feed(text, is_last=is_last)
            if is_first and self.format == "text" and is_gutenberg(part):
                changes.is_book = True
                book = GutenbergStripper() if self.data.strip_gutenberg else None
            is_first = False
            yield part if book is None else book.feed(part, is_last=is_last)

    def _decoded(self, on_block: BlockCallback | None, file_range: FileRange | None) -> Iterator[tuple[str, bool]]:
        """Yield decoded blocks, and whether each is the last."""
        decoder = codecs.getincrementaldecoder(self.encoding)("strict")
        kind = detect_compression(self.path, self.name)
        offset = 0 if file_range is None else file_range.start
        read = (
            read_blocks(self.path, kind, BLOCK_BYTES, name=self.name)
            if file_range is None
            else _read_range(self.path, file_range)
        )
        for block in itertools.chain(read, [b""]):
            if on_block:
                on_block(block)
            if offset == 0 and not codecs.lookup(self.encoding).name.startswith(("utf-16", "utf-32")):
                refuse_utf16(block, name=self.name, compressed=bool(kind))
            if offset == 0 and self.is_utf8 and (position := block.find(0)) >= 0:
                _refuse_nul(self, position)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeError as error:
                if not isinstance(error, UnicodeDecodeError):  # as UTF-16 raises without a byte order mark
                    raise UnreadableError(f"{self.name}: not {self.encoding} ({error})") from None
                wrong = offset - pending + error.start
                raise decoding_error(error, name=self.name, offset=wrong, compressed=bool(kind),
                               encoding=self.encoding) from None  # fmt: skip
            if offset == 0 and "\0" in text:
                _refuse_nul(self, text.index("\0"))
            yield text, not block
            offset += len(block)

    def on_malformed(self, changes: TextChanges | None) -> MalformedRowCallback:
        """Return what is called with malformed rows: recorded if they are skipped, else raised."""
        if not self.reading.skip_malformed:
            return raise_skippable
        return changes.skip_malformed if changes is not None else lambda number, _: self.malformed_rows.add(number)

    def describe_malformed(self, changes: TextChanges) -> Advice:
        """Return a note on the malformed rows that were left out."""
        unit = "row" if self.format in ("json", "parquet") else "line"
        return Advice(describe_malformed(self.name, changes, unit=unit))

    def rows(
        self,
        fields: Sequence[str],
        *,
        example: str,
        on_block: BlockCallback | None = None,
        file_range: FileRange | None = None,
        changes: TextChanges | None = None,
    ) -> Iterator[Row]:
        """Yield the rows of the file.

        Args:
            fields: the fields to read; a row may have more.
            example: a valid JSON line, for messages.
            on_block: called with each block of bytes as it is read; for Parquet before any row.
            file_range: the part to read [default: the whole file].
            changes: records what normalisation finds.

        Raises:
            InputError: a row is invalid, or the file is not text in its encoding, or is damaged.
        """
        changes, on_malformed = TextChanges() if changes is None else changes, self.on_malformed(changes)
        if self.is_parquet:
            if on_block:
                for block in read_blocks(self.path, None, BLOCK_BYTES, name=self.name):
                    on_block(block)
            groups = None if file_range is None else range(file_range.start, file_range.stop)
            parsed = parquet.read_rows(self.path, fields, name=self.name, groups=groups)
        else:
            text = self.text(on_block, file_range, changes)
            if self.format == "json":
                parsed = json_lines.parse_array(text, name=self.name, example=example, on_malformed=on_malformed)
            elif self.is_table:
                kind: csv_tsv.Kind = "csv" if self.format == "csv" else "tsv"
                parsed = csv_tsv.parse_rows(
                    text, name=self.name, kind=kind, header=self._has_header, on_malformed=on_malformed
                )
            else:
                parsed = json_lines.parse_rows(text, name=self.name, example=example, on_malformed=on_malformed)
        return parsed if self.data.keep_line_ends else rows.normalize_rows(parsed, changes)

    def documents(
        self,
        on_block: BlockCallback | None = None,
        file_range: FileRange | None = None,
        changes: TextChanges | None = None,
    ) -> Iterator[str]:
        """Yield the text of each row; arguments and errors as of `rows`.

        Raises:
            InputError: a row has no text.
        """
        if self.holds_conversations:
            return (conversation.text for conversation in self.conversations(on_block, file_range, changes))
        line = json_lines.example_document_line(self.text_field)
        parsed = self.rows([self.text_field], example=line, on_block=on_block, file_range=file_range, changes=changes)
        return rows.read_texts(parsed, self.text_field, on_malformed=self.on_malformed(changes))

    def conversations(
        self,
        on_block: BlockCallback | None = None,
        file_range: FileRange | None = None,
        changes: TextChanges | None = None,
    ) -> Iterator[Conversation]:
        """Yield the conversations in the rows; arguments and errors as of `rows`.

        Raises:
            InputError: a row is not a conversation.
        """
        example = conversations.CONVERSATION_FORMAT
        parsed = self.rows(
            CONVERSATION_FIELDS, example=example, on_block=on_block, file_range=file_range, changes=changes
        )
        read = conversations.parse_conversations(parsed, on_malformed=self.on_malformed(changes))
        return read if self.data.keep_line_ends else map(conversations.normalize_line_ends, read)

    def examples(self, on_block: BlockCallback | None = None, changes: TextChanges | None = None) -> Iterator[Example]:
        """Yield the supervised examples in the rows; arguments and errors as of `rows`.

        Raises:
            InputError: a row is not an example.
            UsageError: it isn't clear which fields hold text and label.
        """
        fields = self.label_fields or examples.EXAMPLE_FIELDS
        parsed = self.rows(fields, example=examples.EXAMPLE_FORMAT, on_block=on_block, changes=changes)
        return examples.parse_examples(parsed, self.label_fields, on_malformed=self.on_malformed(changes))


class TextFiles(list[TextFile]):
    """The files found for some patterns.

    Attributes:
        skipped_suffixes: number of skipped files in folders, by suffix.
    """

    def __init__(self, files: Iterable[TextFile], skipped: Mapping[str, int] | None = None) -> None:
        super().__init__(files)
        self.skipped_suffixes = Counter(skipped or {})

    @property
    def notes(self) -> list[Advice]:
        """Return which files in folders were skipped, and which are in UTF-8 although another encoding is given."""
        return [*self._skipped_notes(), *describe_utf8_files(self)]

    def _skipped_notes(self) -> list[Advice]:
        if not self.skipped_suffixes:
            return []
        suffixes = sorted(
            filter(None, self.skipped_suffixes), key=lambda suffix: (-self.skipped_suffixes[suffix], suffix)
        )
        parts = [f"{self.skipped_suffixes[suffix]:,} {suffix}" for suffix in suffixes[:_NAMED_SUFFIXES]]
        total = sum(self.skipped_suffixes.values())
        rest = total - sum(self.skipped_suffixes[suffix] for suffix in suffixes[:_NAMED_SUFFIXES])
        parts += [f"{rest:,} other"] * (rest > 0)
        counted = f"{', '.join(parts)} file{'s' * (total != 1)} not read"
        common = next(iter(suffixes), None)
        if common and 0 < len(self) < self.skipped_suffixes[common]:
            read = Counter(Path(file.name).suffix or "other" for file in self)
            kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in read.most_common(_NAMED_SUFFIXES))
            counted = f"only {kinds} file{'s' * (len(self) != 1)} read; {counted}"
        return [Advice(counted, settings=[f"include=*{common}"] if common else [])]


def find_text_files(
    patterns: Sequence[str], data: DataConfig | None = None, reading: FilesConfig | None = None
) -> TextFiles:
    """Resolve files, folders, globs and `-` (stdin) to files, each once, in the order given.

    A folder contributes, sorted by path and recursively, the files with a suffix of `SUFFIXES`, or those that match
    `include`. Hidden files are skipped; supervised data come only from files of rows. A glob (`**` is recursive)
    contributes the files it matches.

    Args:
        reading: which files to include, and how they are read.

    Raises:
        InputError: a file is missing, a name is empty, or a folder or glob has no text file.
    """
    data, reading = data or DataConfig(), reading or FilesConfig()
    if "" in patterns:
        raise InputError("the name of a file is empty; give a path (is a variable unset?)")
    files: dict[Path, TextFile] = {}
    skipped: Counter[str] = Counter()
    for pattern in patterns:
        for file in _resolve_pattern(pattern, data, reading, skipped):
            files.setdefault(file.path.resolve(), dataclasses.replace(file, data=data, reading=reading))
    return TextFiles(files.values(), skipped)


def are_conversations(files: Sequence[TextFile]) -> bool:
    """Return whether files hold conversations to learn from.

    Raises:
        InputError: some do, and others don't.
    """
    supervised = [file for file in files if file.supervised and file.holds_conversations]
    if supervised and len(supervised) < len(files):
        other = next(file for file in files if not file.holds_conversations)
        raise InputError(
            f"{supervised[0].name} holds conversations, and {other.name} does not; train on one kind at a time"
        )
    return bool(supervised)


def select_readable(files: Sequence[TextFile]) -> TextFiles:
    """Read every file once and return those that are readable; errors as of `drop_unreadable`."""
    results = [
        try_to_read(file, lambda file: None if file.is_parquet else deque(file.text(), maxlen=0)) for file in files
    ]
    return TextFiles(file for file, _ in drop_unreadable(files, results))


def try_to_read(file: TextFile, read: Callable[[TextFile], F]) -> F | UnreadableError:
    """Return what `read` returns, or the error if the file is unreadable."""
    try:
        return read(file)
    except UnreadableError as error:
        return error
    except OSError as error:
        return UnreadableError(f"{file.name}: {error.strerror}")


def drop_unreadable(files: Sequence[TextFile], results: Sequence[F | UnreadableError]) -> list[tuple[TextFile, F]]:
    """Pair files with their results, and drop those whose result is an error if `skip_unreadable` allows it.

    Raises:
        UnreadableError: files are unreadable and must not be skipped, or none is left; it names up to ten.
    """
    wrong = [result for result in results if isinstance(result, UnreadableError)]
    kept = [
        (file, result) for file, result in zip(files, results, strict=True) if not isinstance(result, UnreadableError)
    ]
    if not wrong:
        return kept
    can_skip = any(file.reading.skip_unreadable for file in files)
    names = [file.name for file, result in zip(files, results, strict=True) if isinstance(result, UnreadableError)]
    more = f" and {len(names) - _NAMED_UNREADABLE:,} more" if len(names) > _NAMED_UNREADABLE else ""
    named = f"{len(names):,} of {len(files):,} files cannot be read: {', '.join(names[:_NAMED_UNREADABLE])}{more}"
    if can_skip and kept:
        _LOG.warning("%s; left out", named)
        return kept
    reasons: dict[str, UnreadableError] = {}
    for name, error in zip(names, wrong, strict=True):
        reasons.setdefault(re.sub(r"offset \d+|0x\w+", "", str(error).replace(name, "")), error)
    shown = list(reasons.values())[:_SHOWN_REASONS]
    settings = list(dict.fromkeys(setting for error in shown for setting in error.settings))
    settings += ["skip_unreadable"] * bool(kept)
    if len(wrong) == 1:
        raise UnreadableError(str(wrong[0]), settings=settings)
    raise UnreadableError(f"{named}. The first: {'. Also: '.join(map(str, shown))}", settings=settings)


def describe_utf8_files(files: Iterable[TextFile]) -> list[Advice]:
    """Return a note if files are read as UTF-8 although another encoding is given."""
    names = [file.name for file in files if file.encoding != file.reading.encoding]
    if not names:
        return []
    read = f"{names[0]} is" if len(names) == 1 else f"{len(names):,} files ({names[0]}, …) are"
    return [Advice(f"{read} valid UTF-8 and read as UTF-8, not in the given encoding")]


def describe_skipped_rows(files: Iterable[TextFile]) -> list[Advice]:
    """Return a note for each file of which malformed rows were left out when it was read."""
    notes = []
    for file in files:
        changes = TextChanges()
        for number in sorted(file.malformed_rows):
            changes.skip_malformed(number)
        if changes.malformed:
            notes.append(file.describe_malformed(changes))
    return notes


def refuse_missing(patterns: Iterable[str]) -> None:
    """Raise InputError for the first pattern that matches nothing, without reading any file."""
    for pattern in patterns:
        if pattern not in ("", STDIN) and not Path(pattern).exists() and not _expand_glob(pattern):
            raise _missing_error(pattern)


def refuse_stdin_twice(names: Iterable[str]) -> None:
    """Raise UsageError if stdin is given for more than one role."""
    if list(names).count(STDIN) > 1:
        raise UsageError("stdin (-) stands for one file only: name the others")


def has_piped_text() -> bool:
    """Return whether stdin is not a terminal and not empty; reads it."""
    return not sys.stdin.isatty() and _copy_stdin(sys.stdin.buffer).path.stat().st_size > 0


def total_text_bytes(files: Iterable[TextFile]) -> int | None:
    """Return the total size of the text; None if file sizes don't tell it (compressed files and rows)."""
    size = 0
    for file in files:
        if file.supervised or file.holds_rows or detect_compression(file.path, file.name):
            return None
        size += file.path.stat().st_size
    return size


def _resolve_pattern(pattern: str, data: DataConfig, reading: FilesConfig, skipped: Counter[str]) -> list[TextFile]:
    path = Path(pattern)
    if pattern == STDIN:
        return [_copy_stdin(sys.stdin.buffer)]
    if path.is_dir():
        return _list_folder(path, data, reading, skipped)
    if path.is_file():
        return [TextFile(pattern, path)]
    if path.exists():  # a pipe, as the shell's <(command) makes one, can be read only once
        return [_copy_pipe(path, path.stat().st_ino)]
    matches = sorted(_expand_glob(pattern))
    files = [TextFile(str(match), match) for match in matches if _is_included(match, reading)]
    if not files and matches:
        raise InputError(f"{pattern}: no file matches", settings=["include", "exclude"])
    if not files:
        raise _missing_error(pattern)
    return files


def _expand_glob(pattern: str) -> list[Path]:
    matches = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else []  # noqa: PTH207 (may be absolute)
    return [path for path in map(Path, matches) if path.is_file()]


def _missing_error(pattern: str) -> InputError:
    return InputError(f"{pattern}: no " + ("file matches" if glob.has_magic(pattern) else "such file or folder"))


def _list_folder(folder: Path, data: DataConfig, reading: FilesConfig, skipped: Counter[str]) -> list[TextFile]:
    """Return the files of a folder to read; counts skipped suffixes, except of hidden and excluded files."""
    suffixes = ROW_SUFFIXES if data.supervised else SUFFIXES
    shown: list[Path] = []
    others: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        if any(part.startswith(".") for part in below.parts) or not path.is_file():
            continue
        if not _is_included(below, dataclasses.replace(reading, include=())):
            continue
        is_read = _is_included(below, reading) if reading.include else _is_text_file_name(path, suffixes)
        if is_read:
            shown.append(path)
        else:
            others["" if _is_binary(path) else path.suffix.lower()] += 1
    if not shown:
        described = (
            f"file that matches {', '.join(reading.include)}" if reading.include else f"{', '.join(suffixes)} file"
        )
        notes = "".join(f" ({note})" for note in TextFiles([], others).notes)
        settings = [setting for note in TextFiles([], others).notes for setting in note.settings]
        raise InputError(f"{folder}: no {described} in this folder{notes}", settings=settings)
    if not reading.include:
        skipped += others
    return [TextFile(str(path), path) for path in shown]


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(1 << 10)
    except OSError:
        return True


def _is_included(path: Path, reading: FilesConfig) -> bool:
    """Apply the include and exclude globs.

    A glob with a slash matches the path, any other one a name: of the file or, to exclude it, of a folder above.
    """
    parts, names = path.parts, (path.name, strip_compression_suffix(path.name))
    if any(_matches(path, glob, (*parts, *names)) for glob in reading.exclude):
        return False
    return not reading.include or any(_matches(path, glob, names) for glob in reading.include)


def _matches(path: Path, pattern: str, names: Sequence[str]) -> bool:
    if "/" in pattern:
        return fnmatch.fnmatchcase(path.as_posix(), pattern.removeprefix("./"))
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _is_text_file_name(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a suffix is that of text: `a.txt`, `a.txt.gz`, `a.gz`, not `a.tar.gz`. JSON has to be an array."""
    inner = strip_compression_suffix(path.name)
    if inner.lower().endswith(json_lines.ARRAY_SUFFIX):
        return json_lines.is_array(_read_beginning(path))
    return Path(inner).suffix.lower() in (suffixes if inner == path.name else (*suffixes, ""))


def _read_beginning(path: Path) -> bytes:
    """Return the first decompressed bytes; empty if the file is unreadable."""
    try:
        return next(read_blocks(path, detect_compression(path, path.name), 1 << 12, name=str(path)), b"")
    except (InputError, OSError):
        return b""


class _TemporaryFile:
    """A temporary file that is deleted with its last reference, or when Python exits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, path.unlink, missing_ok=True)


@lru_cache(maxsize=1)
def _copy_stdin(stdin: BinaryIO) -> TextFile:
    """Copy stdin once; later calls return the same copy."""
    return _copy_stream(stdin, "stdin")


@cache
def _copy_pipe(path: Path, _inode: int) -> TextFile:
    """Copy a pipe once per inode; later calls return the same copy."""
    with path.open("rb") as stream:
        return _copy_stream(stream, str(path))


def _copy_stream(stream: BinaryIO, name: str) -> TextFile:
    return write_temporary_file(read_plain(stream, BLOCK_BYTES), name=name)


def write_temporary_file(parts: Iterable[bytes], *, name: str) -> TextFile:
    """Write bytes to a temporary file; its format is detected from its first line, as for stdin."""
    descriptor, path = tempfile.mkstemp(prefix="lm-text-")
    spool = _TemporaryFile(Path(path))
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(parts)
    return TextFile(name, spool.path, temporary_copy=spool)


def _read_first_line(file: TextFile) -> bytes:
    kind, beginning = detect_compression(file.path, file.name), b""
    for block in read_blocks(file.path, kind, BLOCK_BYTES, name=file.name):
        beginning += block
        if b"\n" in block or len(beginning) > _MAX_FIRST_LINE:
            break
    return beginning.partition(b"\n")[0]


def _read_range(path: Path, file_range: FileRange) -> Iterator[bytes]:
    with path.open("rb") as stream:
        stream.seek(file_range.start)
        remaining = file_range.stop - file_range.start
        while block := stream.read(min(BLOCK_BYTES, remaining)):
            yield block
            remaining -= len(block)


def _refuse_nul(file: TextFile, position: int) -> NoReturn:
    raise UnreadableError(
        f"{file.name}: looks like a binary file (NUL byte at offset {position}); give it as UTF-8 text"
    )
