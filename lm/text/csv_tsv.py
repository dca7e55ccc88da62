"""CSV and TSV tables; without a header, columns are named by their numbers.

CSV follows RFC 4180: quoted fields may contain delimiters, line ends and doubled quotes. The delimiter is a comma, or a
semicolon, tab or bar if that splits the first rows evenly and commas don't. In TSV a row is a line, and quotes are text
unless they enclose the whole field.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from lm.errors import InputError
from lm.text.json_lines import split_lines
from lm.text.normalization import BYTE_ORDER_MARK
from lm.text.rows import MalformedRowCallback, Row, raise_malformed

_DELIMITERS = ",;\t|"
_LONGEST_FIELD = 1 << 28
_SAMPLE_LINES = 20
_QUOTE = '"'

Kind = Literal["csv", "tsv"]
SUFFIXES: dict[str, Kind] = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}


def parse_rows(
    blocks: Iterable[str],
    *,
    name: str,
    kind: Kind,
    header: bool,
    on_malformed: MalformedRowCallback = raise_malformed,
) -> Iterator[Row]:
    """Yield the rows of a table, without header and blank lines.

    Args:
        blocks: the text, cut anywhere.
        header: whether the first row has the column names; otherwise they are numbers, from 1.
        on_malformed: called with rows of another number of fields or with bad quoting, unless it is the first row
            [default: raise the error]. Of a row with bad quoting only the first line is left out.

    Raises:
        InputError: a row has another number of fields than the first one, or bad quoting; the message names the line.
    """
    names: Sequence[str] | None = None
    for number, fields in _parse_records(blocks, name=name, kind=kind, on_malformed=on_malformed):
        if names is None:
            names = _make_unique(fields) if header else [str(index) for index in range(1, len(fields) + 1)]
            if header:
                continue
        if len(fields) != len(names):
            is_longer = len(fields) > len(names)
            if kind == "csv":
                advice = "is a quote missing?"
            elif is_longer:
                advice = "is there a tab too many? Replace it, or remove the row"
            else:
                advice = "is a tab missing? Quotes around a field that holds line ends are CSV's"
            problem = f"{len(fields):,} field{'s' * (len(fields) != 1)}, and the first row has {len(names)}"
            settings = ["format=csv"] if kind == "tsv" and not is_longer else []
            on_malformed(number, InputError(f"{name}: line {number}: {problem}; {advice}", settings=settings))
            continue
        yield Row(number, f"{name}: line {number}", dict(zip(names, fields, strict=True)))


def _make_unique(names: Sequence[str]) -> list[str]:
    """Number column names that are empty or repeated."""
    unique: list[str] = []
    for index, name in enumerate(names, 1):
        stripped = name.strip()
        unique.append(stripped if stripped and stripped not in unique else f"{stripped} (column {index})".strip())
    return unique


def _parse_records(
    blocks: Iterable[str], *, name: str, kind: Kind, on_malformed: MalformedRowCallback
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows as lists of fields, each with the number of its first line."""
    lines = _without_mark(split_lines(blocks, name=name))
    if kind == "tsv":
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, [_unquote(part) for part in line.removesuffix("\r").split("\t")]
        return
    csv.field_size_limit(_LONGEST_FIELD)
    sample = list(itertools.islice(lines, _SAMPLE_LINES))
    rereadable = _RereadableLines(itertools.chain(sample, lines))
    reader = csv.reader(rereadable, delimiter=_detect_delimiter(sample), strict=True)
    on_error: MalformedRowCallback = raise_malformed
    while True:
        first = rereadable.begin_row()
        try:
            fields = next(reader, None)
        except csv.Error as error:
            problem = f"not a row of CSV ({error})"
            if "end of data" in str(error):
                problem = "a closing quote is missing, so a field extends to the end of the file; add the quote"
            on_error(first, InputError(f"{name}: line {first}: {problem}"))
            rereadable.go_to_second_line()
            continue
        if fields is None:
            return
        if fields and fields != [""]:
            yield first, fields
            on_error = on_malformed


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without a byte order mark."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix(BYTE_ORDER_MARK)


class _RereadableLines:
    """Lines of rows; those of a row can be read again, without the first."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._again = iter(lines), deque[str]()
        self._row, self._count = list[str](), 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._row.append(line)
        self._count += 1
        return line + "\n"

    def begin_row(self) -> int:
        """Return the number of the next line, from 1, where a row begins."""
        self._row.clear()
        return self._count + 1

    def go_to_second_line(self) -> None:
        """Go back to the second line of the row."""
        self._again.extendleft(reversed(self._row[1:]))
        self._count -= len(self._row) - 1


def _unquote(field: str) -> str:
    """Remove quotes that enclose a TSV field, if quotes within it are doubled."""
    is_quoted = len(field) > 1 and field[0] == field[-1] == _QUOTE and _QUOTE not in field[1:-1].replace('""', "")
    return field[1:-1].replace('""', _QUOTE) if is_quoted else field


def _detect_delimiter(sample: Sequence[str]) -> str:
    """Return the first delimiter that splits all sample rows evenly, else the comma."""
    for delimiter in _DELIMITERS:
        reader = csv.reader((line + "\n" for line in sample), delimiter=delimiter)
        try:
            counts = Counter(len(fields) for fields in reader if fields)
        except csv.Error:
            continue
        if len(counts) > 1 and len(sample) == _SAMPLE_LINES:  # the last row may be cut
            counts -= Counter([min(counts)])
        if len(counts) == 1 and max(counts) > 1:
            return delimiter
    return _DELIMITERS[0]
