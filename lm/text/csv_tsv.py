"""CSV and TSV tables; without a header, columns are named by their numbers.

CSV follows RFC 4180: quoted fields may contain delimiters, line ends and doubled quotes. The delimiter is a comma, or a
semicolon, tab or bar if that splits the first rows evenly and commas don't. In TSV a row is a line, and quotes are text
unless they enclose the whole field.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from lm.errors import InputError
from lm.text.json_lines import split_lines
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
        on_malformed: called with rows of another number of fields or with bad quoting [default: raise the error].

    Raises:
        InputError: a row has another number of fields than the first one, or bad quoting.
    """
    names: Sequence[str] | None = None
    for number, fields in _parse_records(split_lines(blocks, name=name), name, kind, on_malformed):
        if names is None:
            names = _make_unique(fields) if header else [str(index) for index in range(1, len(fields) + 1)]
            if header:
                continue
        if len(fields) != len(names):
            problem = f"{name}: line {number}: {len(fields):,} fields, and the first row has {len(names)}"
            on_malformed(number, InputError(problem))
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
    lines: Iterator[str], name: str, kind: Kind, on_malformed: MalformedRowCallback
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows as lists of fields, each with the number of its first line."""
    if kind == "tsv":
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, [_unquote(part) for part in line.removesuffix("\r").split("\t")]
        return
    csv.field_size_limit(_LONGEST_FIELD)
    sample = list(itertools.islice(lines, _SAMPLE_LINES))
    ended = (f"{line}\n" for line in itertools.chain(sample, lines))
    reader = csv.reader(ended, delimiter=_detect_delimiter(sample), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            on_malformed(first, InputError(f"{name}: line {first}: not a row of CSV ({error})"))
            continue
        if fields is None:
            return
        if fields and fields != [""]:
            yield first, fields


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
