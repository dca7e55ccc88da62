"""Rows of JSON Lines, JSON arrays, CSV, TSV and Parquet: each its number and its values by column, or what is wrong."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.errors import InputError, UsageError, list_some, missing_packages
from lm.text.decode import UnreadableError

PARQUET_MAGIC = b"PAR1"

_DELIMITERS = ",;\t|"
_LONGEST_FIELD = 1 << 28
_PARQUET_ROWS, _PARQUET_BYTES = 256, 1 << 20  # at a time: a few megabytes of long documents
_BEFORE_OBJECT = re.compile(r"[\s,]*")
_USUAL = ("text", "content", "sentence", "review", "message", "body", "comment", "document", "tweet", "article")

Row = tuple[int, Mapping[str, Any] | InputError]
"""Line or row number from 1, and the values by column, or the error of a malformed row."""


def read_json_lines(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the object in each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, parse_object(line)


def parse_object(text: str) -> dict[str, Any] | InputError:
    """Return the fields of a JSON object, or what is wrong with it."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        return InputError(f"not JSON ({error})")
    return values if isinstance(values, dict) else InputError("not a JSON object")


def read_json_array(blocks: Iterable[str]) -> Iterator[Row]:
    """Yield the objects of a JSON array, of which only one at a time is in memory."""
    decoder, number, text = json.JSONDecoder(), 0, ""
    for block in itertools.chain(blocks, [None]):
        text += block or ""
        if not number and (text := text.lstrip()):
            number, text = 1, text.removeprefix("[")
        start = _end_of_space(text, 0)
        while text.startswith("{", start):
            try:
                values, end = decoder.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                if block is None:
                    yield number, InputError(f"not JSON ({error})")
                    return
                break  # it may continue in the next block
            yield number, values
            number, start = number + 1, _end_of_space(text, end)
        text = text[start:]
    if text.rstrip() != "]":
        yield number, InputError("not an object of a JSON array")


def _end_of_space(text: str, start: int) -> int:
    match = _BEFORE_OBJECT.match(text, start)
    return match.end() if match else start


def read_table(lines: Iterable[str], *, is_tsv: bool, header: bool) -> Iterator[Row]:
    """Yield the rows of CSV or TSV without header and blank lines; without a header, columns have numbers from 1.

    CSV follows RFC 4180: quoted fields may contain delimiters, line ends and doubled quotes. Its delimiter is the most
    frequent one in the first line of comma, semicolon, tab and bar. In TSV a row is a line, and quotes are text.
    """
    names: Sequence[str] = ()
    for number, fields in enumerate((line.split("\t") for line in lines), 1) if is_tsv else _read_csv(lines):
        if isinstance(fields, InputError):
            yield number, fields
        elif any(map(str.strip, fields)) or len(fields) > 1:
            if not names:
                names = _make_unique(fields) if header else [*map(str, range(1, len(fields) + 1))]
                if header:
                    continue
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


def _make_unique(names: Sequence[str]) -> list[str]:
    """Number column names that are empty or repeated."""
    unique: list[str] = []
    for index, name in enumerate(map(str.strip, names), 1):
        unique.append(name if name and name not in unique else f"{name} (column {index})".strip())
    return unique


def read_parquet(path: Path, columns: Sequence[str] | None, name: str) -> Iterator[Row]:
    """Yield the rows of a Parquet file, a few at a time: all columns, or those of some that there are."""
    try:
        import pyarrow  # noqa: PLC0415 (an extra, and slow)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise missing_packages(f"{name}: a Parquet file", "pyarrow") from None
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BYTES) as table:
            batches = table.iter_batches(_PARQUET_ROWS, columns=columns, use_threads=False)
            yield from enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{name}: a damaged Parquet file ({str(error).partition(chr(10))[0]})") from None


def find_column(columns: Sequence[str], requested: str | None, noun: str) -> str:
    """Return the column of a text or label.

    Args:
        requested: its name, its number from 1, or several names of which the first that is there counts; None for the
            only one with a usual name, or the only one.

    Raises:
        UsageError: there is none, or several.
    """
    if requested is None:
        usual = [name for name in columns if name.strip().lower() in _USUAL]
        found = [name for name in columns if name == "text"] or usual or columns
        if len(found) == 1:
            return found[0]
    else:
        for name in (requested, *requested.split(",")):
            if name in columns:
                return name
        if requested.isdecimal() and 0 < int(requested) <= len(columns):
            return columns[int(requested) - 1]
    wanted = f"no column {requested!r}" if requested else f"which column is the {noun}? Set {noun}_column"
    raise UsageError(f"{wanted}; its columns are {list_some([repr(name[:40]) for name in columns], limit=20)}")
