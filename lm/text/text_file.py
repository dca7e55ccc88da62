"""A file of a corpus, and its records: one function per kind of row, chosen by the names of the columns.

    {"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]}
    {"prompt": "12 + 30 = ", "completion": "42"}
    {"instruction": "Translate to German.", "input": "Good morning.", "output": "Guten Morgen."}
    {"text": "What a lovely day.", "label": "joy"}       with a label column; otherwise each row is a document

A label or output is learned on the line after its text, so that a model is trained on exactly what `lm generate` asks
of it. Any other file is one document, unless it has separator lines: a line that is exactly the separator ends a
document and belongs to none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from lm.config.data import DataConfig, DataKind, FilesConfig, Format
from lm.errors import InputError, LMError
from lm.text import decode, tables
from lm.text.records import LABEL_DELIMITER, Part, Record, check_text, parse_messages

FORMATS: Mapping[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".tab": "tsv", ".parquet": "parquet",
}  # fmt: skip
"""Formats by the suffixes that are read from folders, compressed or not; `.json` is read if it is named."""

_BOOK = re.compile(
    r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG EBOOK.{0,500}?\*\*\*[^\S\n]*\n"
    r"(.*?)(?:^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG EBOOK|\Z)",
    re.M | re.S,
)
_UNREADABLE = -1

T = TypeVar("T")
Values = Mapping[str, Any]


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus.

    Attributes:
        name: as the user wrote it, for messages.
        path: where its bytes are; for stdin and pipes a temporary copy.
        temporary_copy: of stdin or a pipe, deleted with the last TextFile that refers to it.
        skipped: what was wrong with rows that were left out, by number.
    """

    name: str
    path: Path
    data: DataConfig = field(default_factory=DataConfig)
    reading: FilesConfig = field(default_factory=FilesConfig)
    temporary_copy: object = field(default=None, repr=False, compare=False)
    skipped: dict[int, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def files(self) -> tuple[TextFile, ...]:
        return (self,)

    @cached_property
    def format(self) -> Format:
        """Return the format from the settings or the suffix; of a `.json` file, stdin and pipes, from the beginning."""
        suffix = Path(decode.strip_compression_suffix(self.name).lower()).suffix
        if self.reading.format or suffix in FORMATS:
            return self.reading.format or FORMATS[suffix]
        if suffix != ".json" and self.temporary_copy is None:
            return "text"
        beginning = next(decode.read_blocks(self.path, self.name), b"").removeprefix(b"\xef\xbb\xbf").lstrip()
        if suffix == ".json":
            return "json" if beginning.startswith(b"[") else "jsonl"
        if beginning.startswith(tables.PARQUET_MAGIC):
            return "parquet"
        return "jsonl" if beginning.startswith(b'{"') else "text"

    @property
    def has_rows(self) -> bool:
        return self.format != "text"

    @cached_property
    def columns(self) -> Sequence[str]:
        """Return the column names of a table, or the fields of the first row that are not null."""
        for _, values in self._readable(self._rows()):
            if not isinstance(values, InputError):
                return [name for name, value in values.items() if value is not None or self.format == "parquet"]
        return []

    @property
    def kind(self) -> DataKind:
        """Return what its records are."""
        return self._reader[0] if self.has_rows else "text"

    @property
    def notes(self) -> list[str]:
        """Return how many rows were skipped when it was read, and why the first was."""
        count = f"{len(self.skipped):,} malformed rows or unreadable parts skipped"
        return [f"{self.name}: {count}, the first: {next(iter(self.skipped.values()))}"] if self.skipped else []

    def text(self) -> Iterator[str]:
        """Yield the decoded text in blocks: with LF line ends, unless they are to be kept.

        Raises:
            InputError: the file is not text in its encoding, or is damaged.
        """
        blocks = decode.decode_blocks(
            decode.read_blocks(self.path, self.name),
            self.name,
            encoding=self.reading.encoding,
            keep_line_ends=self.data.keep_line_ends and not self.has_rows,
        )
        if self.data.strip_gutenberg and not self.has_rows:
            whole = "".join(blocks)
            blocks = iter(["".join(_BOOK.findall(whole)) or whole])
        return blocks

    def records(self) -> Iterator[Record]:
        """Yield the records of the file in order; documents in pieces of at most a few hundred kilobytes.

        Raises:
            InputError: a row is malformed, or the file is not text in its encoding, or is damaged.
            UsageError: it isn't clear which columns hold text and label.
        """
        if not self.has_rows:
            starts = True
            for part in self._readable(_split_at_separators(self.text(), self.data.separator)):
                if part:
                    yield Record.of_text(part, starts=starts)
                starts = part is None or (starts and not part)
            return
        _, columns, read = self._reader
        for record in self.parsed_rows(partial(self._make_record, read), columns):
            if record.kind != "text":
                yield record
                continue
            text = record.parts[0].text
            for start in range(0, len(text), decode.BLOCK_BYTES):
                piece = text[start : start + decode.BLOCK_BYTES]
                yield Record.of_text(piece, starts=start == 0, line=record.line)

    def parsed_rows(self, parse: Callable[[Values, int], T], columns: Sequence[str] | None = None) -> Iterator[T]:
        """Yield what `parse` makes of each row and its number; errors as of `records`.

        Args:
            parse: raises InputError for a malformed row.
            columns: to be read of a Parquet file [default: all].
        """
        for number, values in self._readable(self._rows(columns)):
            try:
                if isinstance(values, InputError):
                    raise values
                parsed = parse(values, number)
            except InputError as error:
                problem = error.at(f"{self.name}: {'row' if self.format in ('json', 'parquet') else 'line'} {number}")
                if not self.reading.skip_malformed:
                    raise problem from None
                self.skipped[number] = str(problem)
            else:
                yield parsed

    def _make_record(self, read: Callable[[Values], Record], values: Values, line: int) -> Record:
        """Return the record of a row, with LF line ends unless they are to be kept."""
        record = read(values)._replace(line=line)
        if self.data.keep_line_ends or not any("\r\n" in part.text for part in record.parts):
            return record
        return record._replace(parts=tuple(Part(part.role, part.text.replace("\r\n", "\n")) for part in record.parts))

    def _rows(self, columns: Sequence[str] | None = None) -> Iterator[tables.Row]:
        if self.format == "parquet":
            return tables.read_parquet(self.path, columns, self.name)
        if self.format == "json":
            return tables.read_json_array(self.text())
        lines = decode.split_lines(self.text())
        if self.format == "jsonl":
            return tables.read_json_lines(lines)
        return tables.read_table(lines, is_tsv=self.format == "tsv", header=self.reading.header is not False)

    def _readable(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield items up to where the file is unreadable, which is an error unless such files are skipped."""
        try:
            yield from items
        except decode.UnreadableError as error:
            if not self.reading.skip_malformed:
                raise
            self.skipped[_UNREADABLE] = str(error)

    @cached_property
    def _reader(self) -> tuple[DataKind, Sequence[str] | None, Callable[[Values], Record]]:
        """Return the kind of the records, the columns that they are made from, and the function that makes them."""
        columns, data = self.columns, self.data
        try:
            known = [(kind, None, read) for needed, kind, read in _READERS if {*columns} >= needed]
            if known and data.text_column is None and data.label_column not in columns:
                return known[0]
            if data.label_column is not None and columns:
                label = tables.find_column(columns, data.label_column, "label")
                text = tables.find_column([name for name in columns if name != label], data.text_column, "text")
                return "examples", (text, label), partial(_read_labelled, text, label)
            text = tables.find_column(columns, data.text_column, "text") if columns else ""
        except LMError as error:
            raise error.at(self.name) from None
        return "text", (text,), partial(_read_text, text)


def read_column(values: Values, name: str) -> str:
    """Return the text in a column of a row; InputError if there is none."""
    if values.get(name) is None:
        raise InputError(f"no text in {name!r}; its columns are {', '.join(list(values)[:10]) or 'none'}")
    return check_text(values[name], repr(name))


def _read_text(column: str, values: Values) -> Record:
    return Record.of_text(read_column(values, column))


def _read_labelled(text: str, label: str, values: Values) -> Record:
    value = values.get(label)  # numbers and booleans are written as in JSON
    name = json.dumps(value) if isinstance(value, bool | int | float) else read_column(values, label)
    return Record.of_example(read_column(values, text), LABEL_DELIMITER + _not_empty(name))


def _read_example(values: Values) -> Record:
    return Record.of_example(read_column(values, "prompt"), _not_empty(read_column(values, "completion")))


def _read_instruction(values: Values) -> Record:
    prompt, output = read_column(values, "instruction"), _not_empty(read_column(values, "output"))
    if values.get("input"):
        prompt += f"\n{read_column(values, 'input')}"
    return Record.of_example(prompt, LABEL_DELIMITER + output)


def _read_conversation(values: Values) -> Record:
    messages = parse_messages(values.get("messages", values.get("conversations")), allow_empty=False)
    if messages[-1].role != "assistant":
        raise InputError("the last message is the user's, so there is no reply to learn")
    return Record(messages)


def _not_empty(text: str) -> str:
    if not text:
        raise InputError("the completion is empty, so there is nothing to learn")
    return text


_READERS: Sequence[tuple[set[str], DataKind, Callable[[Values], Record]]] = (
    ({"messages"}, "conversations", _read_conversation),
    ({"conversations"}, "conversations", _read_conversation),
    ({"prompt", "completion"}, "examples", _read_example),
    ({"instruction", "output"}, "examples", _read_instruction),
)
"""The columns that rows need to have, what they are, and how they are read; the first that applies."""


def _split_at_separators(blocks: Iterable[str], separator: str) -> Iterator[str | None]:
    """Yield the text of the blocks, with None for each separator line."""
    line = re.compile(rf"{re.escape(separator)}\r?\n")  # what starts a line is checked below: a lookbehind is slow
    unsure = len(separator) + 1  # a separator line that is not complete yet can be this long
    before = "\n"  # the character before `rest`; a file starts with a line
    rest = ""
    for block in blocks:
        buffer, start = before + rest + block, 1
        for match in line.finditer(buffer, 1):
            if buffer[match.start() - 1] == "\n":
                yield buffer[start : match.start()]
                yield None
                start = match.end()
        end = max(start, len(buffer) - unsure)
        yield buffer[start:end]
        before, rest = buffer[end - 1], buffer[end:]
    last = (before + rest).removesuffix("\r")
    yield rest[: len(last) - 1 - len(separator)] if last.endswith("\n" + separator) else rest
