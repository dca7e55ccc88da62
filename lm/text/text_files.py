"""Find and read text files: paths, folders, globs and stdin, decompressed and decoded in bounded memory.

Files may be compressed (`detect_compression`). Stdin and pipes can be read only once, so they are copied to a temporary
file first. Text is UTF-8 unless an encoding is given or a byte order mark says so; line ends are normalised by
`lm.text.normalization`. Rows are objects of JSON Lines or a JSON array, or rows of CSV, TSV and Parquet.
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
import sys
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from lm.config.data import DataConfig, FilesConfig, Format
from lm.errors import InputError, UsageError, list_some
from lm.text import conversations, csv_tsv, examples, json_lines, parquet, rows
from lm.text.compression import detect_compression, read_blocks, read_plain, strip_compression_suffix
from lm.text.conversations import CONVERSATION_FIELDS, Conversation
from lm.text.encodings import UnreadableError, find_encoding
from lm.text.examples import Example
from lm.text.normalization import GutenbergStripper, LineEndNormalizer, is_gutenberg, uses_carriage_returns
from lm.text.rows import FIELD, Row

F = TypeVar("F")

_LOG = logging.getLogger(__name__)

STDIN = "-"
ROW_SUFFIXES = (*json_lines.SUFFIXES, *csv_tsv.SUFFIXES, parquet.SUFFIX)
SUFFIXES = (".txt", ".text", ".md", *ROW_SUFFIXES)
"""Suffixes of files read from folders, compressed or not, besides `.json` files with arrays of objects; files and globs
may have any suffix."""

BLOCK_BYTES = 1 << 18

_MAX_FIRST_LINE = 1 << 24
_NAMED = 10

BlockCallback = Callable[[bytes], None]
"""Called with each decompressed block of a file as it is read."""

ProgressCallback = Callable[[int, int | None], None]
"""Called with the bytes done, and the total if known."""


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus.

    Attributes:
        name: as the user wrote it, for messages.
        path: where its bytes are; for stdin and pipes a temporary copy.
        data: which fields are text, whether rows are supervised examples, and how line ends are treated.
        temporary_copy: the copy of stdin or a pipe, deleted with the last TextFile that refers to it.
        malformed_rows: numbers of the rows that were skipped.
    """

    name: str
    path: Path
    data: DataConfig = field(default_factory=DataConfig)
    reading: FilesConfig = field(default_factory=FilesConfig)
    temporary_copy: _TemporaryFile | None = field(default=None, repr=False, compare=False)
    malformed_rows: set[int] = field(default_factory=set, repr=False, compare=False)

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
        """Return the encoding of a byte order mark, else the given one."""
        return self.reading.encoding if self.is_parquet else find_encoding(self._beginning, self.reading.encoding)

    @cached_property
    def _beginning(self) -> bytes:
        """Return the first decompressed bytes; empty if the file is unreadable."""
        with contextlib.suppress(InputError, OSError):
            return next(read_blocks(self.path, detect_compression(self.path, self.name), 1 << 12, name=self.name), b"")
        return b""

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
        if self.format == "text":
            return self.temporary_copy is not None and examples.has_example_fields(self._first_object or {})
        if self.data.label_column is None and (self.format == "jsonl" or examples.has_example_fields(self.field_names)):
            return examples.has_example_fields(self.field_names)
        with contextlib.suppress(UsageError):
            return self.label_fields is not None
        return False

    @cached_property
    def holds_conversations(self) -> bool:
        """Return whether its rows are conversations by their field names, and no field is named; not if unreadable."""
        if not self.holds_rows or self.data.text_column is not None or self.data.label_column is not None:
            return False
        with contextlib.suppress(InputError, OSError):
            if self.is_parquet:
                names = self.field_names
                return FIELD not in names and not {*CONVERSATION_FIELDS}.isdisjoint(names)
            values = self._first_object if self.format == "jsonl" else self._first_row and self._first_row.values
            return conversations.are_conversation_values(values or {})
        return False

    @cached_property
    def field_names(self) -> Sequence[str]:
        """Return the column names, or the field names of the first row; empty without rows."""
        if self.is_parquet:
            return parquet.read_columns(self.path, name=self.name)
        return () if self._first_row is None else list(self._first_row.values)

    @cached_property
    def _first_row(self) -> Row | None:
        row = next(self.rows(()), None)
        return row and row.without_nulls()

    @cached_property
    def text_field(self) -> str:
        """Return the field that holds the text; UsageError if it isn't clear."""
        requested, names = self.data.text_column, self.field_names
        if not names or (requested is not None and not self.is_table and not {*requested.split(",")} & {*names}):
            return requested or FIELD  # rows without the field are refused by themselves
        return rows.find_text_field(names, requested, file=self.name)

    @cached_property
    def label_fields(self) -> tuple[str, str] | None:
        """Return the fields of text and label; None if rows use the field names of examples."""
        text, label = self.data.text_column, self.data.label_column
        if (text, label) == (None, None) and (not self.field_names or examples.has_example_form(self.field_names)):
            return None
        return rows.find_label_fields(self.field_names, text, label, file=self.name)

    def __getstate__(self) -> dict[str, Any]:
        """Record the format. Another process doesn't delete a temporary copy: its finalizer is not pickled."""
        return {**self.__dict__, "format": self.format}

    def text(self, on_block: BlockCallback | None = None) -> Iterator[str]:
        """Yield the decoded, normalised text in blocks.

        Args:
            on_block: called with each block of bytes as it is read.

        Raises:
            InputError: the file is not text in its encoding, or is damaged.
        """
        feeds = book = None
        is_first = True
        for text, is_last in self._decoded(on_block):
            part = text
            if not self.data.keep_line_ends:
                if is_first:
                    returns = bool(text) and "\n" not in text
                    returns = returns and uses_carriage_returns(text for text, _ in self._decoded(None))
                    if returns or not self.holds_rows:  # line ends within rows are normalised there
                        feeds = LineEndNormalizer(returns=returns)
                part = text if feeds is None else feeds.feed(text, is_last=is_last)
            if is_first and self.data.strip_gutenberg and self.format == "text" and is_gutenberg(part):
                book = GutenbergStripper()
            is_first = False
            yield part if book is None else book.feed(part, is_last=is_last)

    def _decoded(self, on_block: BlockCallback | None) -> Iterator[tuple[str, bool]]:
        """Yield decoded blocks, and whether each is the last."""
        decoder, offset = codecs.getincrementaldecoder(self.encoding)("strict"), 0
        blocks = read_blocks(self.path, detect_compression(self.path, self.name), BLOCK_BYTES, name=self.name)
        for block in itertools.chain(blocks, [b""]):
            if on_block:
                on_block(block)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeError as error:
                place = offset - pending + getattr(error, "start", 0)
                raise UnreadableError(f"{self.name}: not valid {self.encoding} at byte offset {place}") from None
            if offset == 0 and "\0" in text:
                raise UnreadableError(f"{self.name}: a binary file (NUL at byte offset {block.find(0)})")
            yield text, not block
            offset += len(block)

    def on_malformed(self, number: int, error: InputError) -> None:
        """Record a malformed row if such rows are skipped, else raise the error."""
        if not self.reading.skip_malformed:
            raise error
        self.malformed_rows.add(number)

    def rows(self, fields: Sequence[str], on_block: BlockCallback | None = None) -> Iterator[Row]:
        """Yield the rows of the file.

        Args:
            fields: the columns to read of a Parquet file; a row may have more.
            on_block: called with each block of bytes as it is read; for Parquet before any row.

        Raises:
            InputError: a row is invalid, or the file is not text in its encoding, or is damaged.
        """
        if self.is_parquet:
            for block in read_blocks(self.path, None, BLOCK_BYTES, name=self.name) if on_block else ():
                if on_block:
                    on_block(block)
            parsed = parquet.read_rows(self.path, fields, name=self.name)
        elif self.format == "json":
            parsed = json_lines.parse_array(self.text(on_block), name=self.name, on_malformed=self.on_malformed)
        elif self.is_table:
            kind: csv_tsv.Kind = "csv" if self.format == "csv" else "tsv"
            header = self.reading.header is not False
            parsed = csv_tsv.parse_rows(
                self.text(on_block), name=self.name, kind=kind, header=header, on_malformed=self.on_malformed
            )
        else:
            parsed = json_lines.parse_rows(self.text(on_block), name=self.name, on_malformed=self.on_malformed)
        return parsed if self.data.keep_line_ends else rows.normalize_rows(parsed)

    def documents(self, on_block: BlockCallback | None = None) -> Iterator[str]:
        """Yield the text of each row; arguments and errors as of `rows`."""
        if self.holds_conversations:
            return (conversation.text for conversation in self.conversations(on_block))
        column = self.text_field
        return rows.parse_rows(
            self.rows([column], on_block), lambda row: rows.read_text(row, column), on_malformed=self.on_malformed
        )

    def conversations(self, on_block: BlockCallback | None = None) -> Iterator[Conversation]:
        """Yield the conversations in the rows; arguments and errors as of `rows`."""
        parsed = conversations.parse_conversations(
            self.rows(CONVERSATION_FIELDS, on_block), on_malformed=self.on_malformed
        )
        return parsed if self.data.keep_line_ends else map(conversations.normalize_line_ends, parsed)

    def examples(self, on_block: BlockCallback | None = None) -> Iterator[Example]:
        """Yield the supervised examples in the rows; arguments and errors as of `rows`.

        Raises:
            UsageError: it isn't clear which fields hold text and label.
        """
        fields = self.label_fields or examples.EXAMPLE_FIELDS
        return examples.parse_examples(self.rows(fields, on_block), self.label_fields, on_malformed=self.on_malformed)


class TextFiles(list[TextFile]):
    """The files found for some patterns.

    Attributes:
        skipped_suffixes: number of skipped files in folders, by suffix.
    """

    def __init__(self, files: Iterable[TextFile], skipped: Mapping[str, int] | None = None) -> None:
        super().__init__(files)
        self.skipped_suffixes = Counter(skipped or {})

    @property
    def notes(self) -> list[str]:
        """Return how many files in folders were not read."""
        counts = [f"{count:,} {suffix or 'other'}" for suffix, count in self.skipped_suffixes.most_common(_NAMED)]
        return [f"files not read: {', '.join(counts)}"] if counts else []


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
        raise InputError("the name of a file is empty")
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
        UnreadableError: a file is unreadable and must not be skipped, or none is left.
    """
    errors = [result for result in results if isinstance(result, UnreadableError)]
    kept = [
        (file, result) for file, result in zip(files, results, strict=True) if not isinstance(result, UnreadableError)
    ]
    if errors and not (kept and files[0].reading.skip_unreadable):
        raise errors[0]
    if errors:
        _LOG.warning("%d unreadable files skipped: %s", len(errors), list_some([*map(str, errors)], limit=_NAMED))
    return kept


def describe_skipped_rows(files: Iterable[TextFile]) -> list[str]:
    """Return a note for each file of which malformed rows were skipped when it was read."""
    return [
        f"{file.name}: {len(file.malformed_rows):,} malformed rows skipped" for file in files if file.malformed_rows
    ]


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
        raise InputError(f"{pattern}: no file matches include and exclude")
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
            others[path.suffix.lower()] += 1
    if not shown:
        wanted = reading.include or suffixes
        raise InputError(f"{folder}: no {', '.join(wanted)} file in this folder")
    if not reading.include:
        skipped += others
    return [TextFile(str(path), path) for path in shown]


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
        return json_lines.is_array(TextFile(path.name, path)._beginning)
    return Path(inner).suffix.lower() in (suffixes if inner == path.name else (*suffixes, ""))


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
