"""A file of a corpus, and its records: one function per kind of row, chosen by the names of the columns.

    {"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]}
    {"prompt": "12 + 30 = ", "completion": "42"}
    {"instruction": "Translate to German.", "input": "Good morning.", "output": "Guten Morgen."}
    {"source": "Good morning.", "target": "Guten Morgen."}       or columns that are named, or just two of languages
    {"text": "What a lovely day.", "label": "joy"}       with a label column; otherwise each row is a document

A label or output is learned on the line after its text, so that a model is trained on exactly what `lm generate` asks
of it. Any other file is one document, unless it has separator lines: a line that is exactly the separator ends a
document and belongs to none.

Prompts from a file: one per line, or JSON objects or Parquet rows.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from lm.config.run_config import LANGUAGE_PATTERN, DataConfig, DataKind, FilesConfig, Format
from lm.errors import InputError, LMError, UsageError, missing_packages
from lm.text import LABEL_DELIMITER, Record, check_text, decode, parse_messages
from lm.text.decode import split_lines

FORMATS: Mapping[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".tab": "tsv", ".parquet": "parquet",
}  # fmt: skip
"""Formats by the suffixes that are read from folders, compressed or not; `.json` is read if it is named."""

_DELIMITERS = ",;\t|"
_LONGEST_FIELD = 1 << 28
_PARQUET_ROWS, _PARQUET_BYTES = 256, 1 << 20  # at a time: a few megabytes of long documents
_USUAL = ("text", "content", "sentence", "review", "message", "body", "comment", "document", "tweet", "article")
_SIDES = ("source", "target")
_UNREADABLE = -1

T = TypeVar("T")
Values = Mapping[str, Any]
Row = tuple[int, Values | InputError]
"""Line or row number from 1, and the values by column, or the error of a malformed row."""


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus.

    Attributes:
        name: as the user wrote it, for messages.
        path: where its bytes are; for stdin and pipes a temporary copy.
        is_copy: of stdin or a pipe, in a temporary file.
        skipped: rows that were left out, by number, with what was wrong with the first.
    """

    heads: ClassVar[None] = None

    name: str
    path: Path
    data: DataConfig = field(default_factory=DataConfig)
    reading: FilesConfig = field(default_factory=FilesConfig)
    is_copy: bool = False
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
        if suffix != ".json" and not self.is_copy:
            return "text"
        beginning = next(filter(None, self.text()), "").lstrip()
        if suffix == ".json" and beginning.startswith("["):
            return "json"
        return "jsonl" if suffix == ".json" or beginning.startswith('{"') else "text"

    @property
    def has_rows(self) -> bool:
        return self.format != "text"

    @cached_property
    def columns(self) -> Sequence[str]:
        """Return the column names of a table, or the fields of the first row; beside a text those that are not null."""
        first: Values = next((values for _, values in self._rows() if not isinstance(values, InputError)), {})
        named = (self.data.text_column, self.data.label_column, self.data.source_column, self.data.target_column)
        has_all = self.format == "parquet" or first.get("text") is None
        return [name for name, value in first.items() if value is not None or has_all or name in named]

    @property
    def kind(self) -> DataKind:
        """Return what its records are."""
        return self._reader[0] if self.has_rows else "text"

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Return the source and target language of pairs, as far as the names of their columns tell."""
        return match_languages(*self._reader[1]) if self.kind == "pairs" else (None, None)

    @property
    def notes(self) -> list[str]:
        """Return how many rows were skipped when it was read, and why the first was."""
        count = f"{len(self.skipped):,} malformed rows or unreadable parts skipped"
        return [f"{self.name}: {count}, the first: {next(iter(self.skipped.values()))}"] if self.skipped else []

    def text(self) -> Iterator[str]:
        """Yield the decoded text in blocks, with LF line ends; up to where it is unreadable, if such files are skipped.

        Raises:
            InputError: the file is not text in its encoding, or is damaged.
        """
        blocks = decode.read_blocks(self.path, self.name)
        try:
            yield from decode.normalize_blocks(decode.decode_blocks(blocks, self.name, encoding=self.reading.encoding))
        except decode.UnreadableError as error:
            self._skip(_UNREADABLE, error)

    def _skip(self, number: int, error: InputError) -> None:
        if not self.reading.skip_malformed:
            raise error
        self.skipped.setdefault(number, "" if self.skipped else str(error))

    def records(self) -> Iterator[Record]:
        """Yield the records of the file in order; documents of text in pieces of at most a few hundred kilobytes.

        Raises:
            InputError: a row is malformed, or the file is not text in its encoding, or is damaged.
            UsageError: it isn't clear which columns hold text and label.
        """
        if not self.has_rows:
            starts = True
            for part in _split_at_separators(self.text(), self.data.separator):
                if part:
                    yield Record.of_text(part, starts=starts)
                starts = part is None or (starts and not part)
            return
        yield from (record for record in self.row_records() if record.kind != "text" or record.text)

    def row_records(self) -> Iterator[Record]:
        """Yield a record for each row, also for an empty text; errors as of `records`."""
        _, columns, read = self._reader
        return self.parsed_rows(lambda values, line: read(values)._replace(line=line), columns)

    def parsed_rows(self, parse: Callable[[Values, int], T], columns: Sequence[str] | None = None) -> Iterator[T]:
        """Yield what `parse` makes of each row and its number; errors as of `records`.

        Args:
            parse: raises InputError for a malformed row.
            columns: to be read of a Parquet file [default: all].
        """
        for number, values in self._rows(columns):
            try:
                if isinstance(values, InputError):
                    raise values
                parsed = parse(values, number)
            except InputError as error:
                place = "row" if self.format in ("json", "parquet") else "line"
                self._skip(number, error.at(f"{self.name}: {place} {number}"))
            else:
                yield parsed

    def _rows(self, columns: Sequence[str] | None = None) -> Iterator[Row]:
        if self.format == "parquet":
            return self._read_parquet(columns)
        if self.format == "json":
            return _read_json_array("".join(self.text()))
        lines = decode.split_lines(self.text())
        if self.format == "jsonl":
            return ((number, _parse_object(line)) for number, line in enumerate(lines, 1) if line.strip())
        return _read_table(lines, is_tsv=self.format == "tsv", header=self.reading.header)

    def _read_parquet(self, columns: Sequence[str] | None) -> Iterator[Row]:
        """Yield the rows of a Parquet file, a few at a time: all columns, or those of some that there are."""
        try:
            import pyarrow  # noqa: PLC0415 (an extra, and slow)
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError:
            raise missing_packages(f"{self.name}: a Parquet file", "pyarrow") from None
        try:
            with parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=_PARQUET_BYTES) as table:
                batches = table.iter_batches(_PARQUET_ROWS, columns=columns, use_threads=False)
                yield from enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            problem = str(error).partition("\n")[0]
            self._skip(_UNREADABLE, InputError(f"{self.name}: a damaged Parquet file ({problem})"))

    @cached_property
    def _reader(self) -> tuple[DataKind, Sequence[str], Callable[[Values], Record]]:
        """Return the kind of the records, the columns that they are made from, and the function that makes them."""
        columns, data = self.columns, self.data
        known = [(kind, columns, read) for needed, kind, read in _READERS if {*columns} >= needed]
        is_plain = data.text_column is None and data.label_column not in columns
        try:
            if is_plain and columns and (sides := _find_sides(columns, data)):
                return "pairs", sides, partial(_read_pair, sides)
            if is_plain and known:
                return known[0]
            if data.label_column is not None and columns:
                label = find_column(columns, data.label_column, "label")
                text = find_column([name for name in columns if name != label], data.text_column, "text")
                return "examples", (text, label), partial(_read_example, (text,), label, LABEL_DELIMITER)
            text = find_column(columns, data.text_column, "text") if columns else ""
        except LMError as error:
            raise error.at(self.name) from None
        return "text", (text,), lambda values: Record.of_text(read_column(values, text))


def _parse_object(text: str) -> Values | InputError:
    """Return the fields of a JSON object, or what is wrong with it."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        return InputError(f"not JSON ({error})")
    return values if isinstance(values, dict) else InputError("not a JSON object")


def _read_json_array(text: str) -> Iterator[Row]:
    """Yield the objects of a JSON array, which is read as a whole."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield 1, InputError(f"not a JSON array ({error})")
        return
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        yield number, row if isinstance(row, dict) else InputError("not a JSON object")


def _read_table(lines: Iterable[str], *, is_tsv: bool, header: bool) -> Iterator[Row]:
    """Yield the rows of CSV or TSV without header and blank lines; without a header, columns have numbers from 1.

    CSV follows RFC 4180: quoted fields may contain delimiters, line ends and doubled quotes. Its delimiter is the most
    frequent one in the first line of comma, semicolon, tab and bar. In TSV a row is a line, and quotes are text.
    """
    names: Sequence[str] = ()
    for number, fields in enumerate((line.split("\t") for line in lines), 1) if is_tsv else _read_csv(lines):
        if isinstance(fields, InputError):
            yield number, fields
        elif any(map(str.strip, fields)) or len(fields) > 1:
            if not names and header:
                names = [*map(str.strip, fields)]
                continue
            names = names or [*map(str, range(1, len(fields) + 1))]
            if len(fields) == len(names):
                yield number, dict(zip(names, fields, strict=True))
            else:
                yield number, InputError(f"{len(fields)} fields, and the first row has {len(names)}")


def _read_csv(lines: Iterable[str]) -> Iterator[tuple[int, list[str] | InputError]]:
    """Yield the fields of each row, with the number of its first line."""
    lines = iter(lines)
    first = next(lines, "")
    csv.field_size_limit(_LONGEST_FIELD)
    ended = (f"{line}\n" for line in itertools.chain([first], lines))
    reader = csv.reader(ended, delimiter=max(_DELIMITERS, key=first.count), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, InputError(f"not a row of CSV ({error})")


def find_column(columns: Sequence[str], requested: str | None, noun: str) -> str:
    """Return the column of a text or label.

    Args:
        requested: its name or number from 1, or several of which the first that is there counts; None for `text`, the
            only one with a usual name, or the only one.

    Raises:
        UsageError: there is none, or several.
    """
    if requested is None:
        usual = [name for name in columns if name.strip().lower() in _USUAL]
        found = [name for name in columns if name == "text"] or usual or columns
    else:
        known = {str(number): name for number, name in enumerate(columns, 1)} | {name: name for name in columns}
        found = [known[name] for name in (requested, *requested.split(",")) if name in known][:1]
    if len(found) != 1:
        wanted = (
            f"no column {requested!r}"
            if requested
            else f"which column is the {noun}? Set {noun}_column (of pairs, source_column)"
        )
        raise UsageError(f"{wanted}; its columns are {', '.join(columns)}")
    return found[0]


def _find_sides(columns: Sequence[str], data: DataConfig) -> Sequence[str]:
    """Return the columns of pairs; none if rows aren't pairs.

    They are those of the settings, else `source` and `target`, of which none may be alone, else the only two, if
    languages or numbers name them.
    """
    named = (data.source_column, data.target_column)
    if any(named) or {*columns} >= {*_SIDES} or {*columns} < {*_SIDES}:
        return [find_column(columns, name or side, side) for name, side in zip(named, _SIDES, strict=True)]
    return columns if len(columns) == 2 and all(re.fullmatch("[a-z]{2}|[12]", name) for name in columns) else ()


def match_languages(source: str, target: str) -> tuple[str | None, str | None]:
    """Return two names, or None for one that is no code of a language."""
    first, second = (name if re.fullmatch(LANGUAGE_PATTERN, name) else None for name in (source, target))
    return first, second


def read_column(values: Values, name: str) -> str:
    """Return the text in a column of a row; InputError if there is none."""
    if values.get(name) is None:
        raise InputError(f"no text in {name!r}; its columns are {', '.join(values) or 'none'}")
    return check_text(values[name], repr(name))


def _read_example(prompts: Sequence[str], completion: str, delimiter: str, values: Values) -> Record:
    """Make an example of columns; those of prompts after the first may be empty."""
    prompt = "\n".join(read_column(values, name) for name in prompts if name == prompts[0] or values.get(name))
    answer = values.get(completion)  # numbers and booleans are written as in JSON
    answer = json.dumps(answer) if isinstance(answer, bool | int | float) else read_column(values, completion)
    if not answer:
        raise InputError("the completion is empty, so there is nothing to learn")
    return Record.of_example(prompt, delimiter + answer)


def _read_pair(sides: Sequence[str], values: Values) -> Record:
    source, target = (read_column(values, name).strip() for name in sides)
    return Record.of_pair(source, target)


def _read_conversation(values: Values) -> Record:
    messages = parse_messages(values.get("messages", values.get("conversations")), allow_empty=False)
    if messages[-1].role != "assistant":
        raise InputError("the last message is the user's, so there is no reply to learn")
    return Record(messages)


_READERS: Sequence[tuple[set[str], DataKind, Callable[[Values], Record]]] = (
    ({"messages"}, "conversations", _read_conversation),
    ({"conversations"}, "conversations", _read_conversation),
    ({"prompt", "completion"}, "examples", partial(_read_example, ("prompt",), "completion", "")),
    (
        {"instruction", "output"},
        "examples",
        partial(_read_example, ("instruction", "input"), "output", LABEL_DELIMITER),
    ),
)
"""The columns that rows need to have, what they are, and how they are read; the first that applies."""


def _split_at_separators(blocks: Iterable[str], separator: str) -> Iterator[str | None]:
    """Yield the text of the blocks, with None for each separator line."""
    line, text = f"\n{separator}\n", "\n"  # `text` is what comes next, after the character before it
    for block in blocks:
        text, start = text + block, 0
        while (end := text.find(line, start)) >= 0:
            yield text[start + 1 : end + 1]
            yield None
            start = end + len(line) - 1
        stop = max(start, len(text) - len(line))  # a separator line that is not complete yet may begin here
        yield text[start + 1 : stop + 1]
        text = text[stop:]
    yield text[1:].removesuffix(separator) if text.endswith(line[:-1]) else text[1:]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue.

    Attributes:
        number: its index in the file, from 0.
        text: may be empty.
        where: file and line, for messages.
        seed: its own sampling seed, if given.
        max_tokens: its own limit, if given.
        repeat: number of equal prompts before it; 0 for one with its own seed.
    """

    number: int
    text: str
    where: str
    seed: int | None = None
    max_tokens: int | None = None
    repeat: int = 0


def read_prompts(file: TextFile) -> Iterator[Prompt]:
    """Yield the prompts of a file.

    Each line is a prompt; an empty line is an empty prompt. Of JSON, CSV, TSV or Parquet it is each row, with `prompt`
    or `text`, and optionally `seed` and `max_tokens`.

    Raises:
        InputError: the file is damaged or not UTF-8, or a row has no prompt.
    """
    seen = Counter[str]()
    lines = (Prompt(0, text, f"{file.name}: line {line}") for line, text in enumerate(split_lines(file.text()), 1))
    for number, prompt in enumerate(file.parsed_rows(partial(_parse_row, file.name)) if file.has_rows else lines):
        repeat = seen[prompt.text] if prompt.seed is None else 0
        seen[prompt.text] += prompt.seed is None
        yield replace(prompt, number=number, repeat=repeat)


def _parse_row(name: str, values: Values, line: int) -> Prompt:
    text = read_column(values, "text" if values.get("prompt") is None else "prompt")
    given = {key: values[key] for key in ("seed", "max_tokens") if values.get(key) not in (None, "")}
    try:
        prompt = Prompt(0, text, f"{name}: line {line}", **{key: int(value) for key, value in given.items()})
    except (TypeError, ValueError, OverflowError):
        raise InputError("seed and max_tokens are integers") from None
    if prompt.max_tokens is not None and prompt.max_tokens < 1:
        raise InputError("max_tokens is at least 1")
    return prompt
