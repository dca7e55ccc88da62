"""Rows with named fields (JSON, CSV, TSV, Parquet): which columns hold texts, labels and sentence pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lm.config.data import LANGUAGE_PATTERN
from lm.errors import InputError, UsageError, list_some
from lm.text.normalization import normalize_line_ends

FIELD, LABEL = "text", "label"
PAIR_FIELDS = "source", "target"
_TEXTS = ("text", "content", "sentence", "review", "message", "body", "comment", "document", "tweet", "article")
_LABELS = ("label", "category", "class", "target", "sentiment", "intent", "topic")
_SHOWN = 20

T = TypeVar("T")

MalformedRowCallback = Callable[[int, InputError], None]
"""Called with the number of a malformed row, and its error, which it may raise."""


def raise_malformed(number: int, error: InputError) -> None:  # noqa: ARG001 (a `MalformedRowCallback`)
    raise error


class Row(NamedTuple):
    """A row of a file.

    Attributes:
        number: its row or line number, from 1.
        where: file and number, for messages.
    """

    number: int
    where: str
    values: Mapping[str, Any]

    def without_nulls(self) -> Row:
        """Return the row without the fields that are null, which are as good as absent."""
        return self._replace(values={name: value for name, value in self.values.items() if value is not None})


def find_text_field(names: Sequence[str], requested: str | None, *, file: str) -> str:
    """Return the column that holds the text.

    Args:
        names: of all columns, in order.
        requested: its name, or its number from 1, or several names of which the first that is there counts; None for
            the one with a usual name, or the only one.

    Raises:
        UsageError: there is no such column, or it isn't clear which one is meant.
    """
    if requested is not None and requested not in names:
        requested = next((name for name in requested.split(",") if name in names), requested)
    found = _find_field(names, requested, FIELD, _TEXTS)
    if found is None and requested is None and len(names) == 1:
        return names[0]
    return found or _raise_unclear(names, requested, file=file, noun="text")


def find_label_fields(names: Sequence[str], text: str | None, label: str | None, *, file: str) -> tuple[str, str]:
    """Return the columns of text and label; arguments and errors as of `find_text_field`.

    Of two columns, knowing one determines the other.
    """
    label_name = _find_field(names, label, LABEL, _LABELS)
    others = [name for name in names if name != label_name] if text is None else names
    text_name = _find_field(others, text, FIELD, _TEXTS)
    if len(names) == 2 and label_name is None and label is None and text_name is not None:
        label_name = next(name for name in names if name != text_name)
    if len(names) == 2 and text_name is None and text is None and label_name is not None:
        text_name = next(name for name in names if name != label_name)
    text_name = text_name or _raise_unclear(names, text, file=file, noun="text")
    label_name = label_name or _raise_unclear(names, label, file=file, noun="label")
    if text_name == label_name:
        raise UsageError(f"{file}: text and label are both column {text_name!r}")
    return text_name, label_name


def find_pair_fields(
    names: Sequence[str], requested: tuple[str, str], *, file: str, in_order: bool = False
) -> tuple[str, str]:
    """Return the columns of source and target.

    Two columns of other names are source and target in this order if they have no names, or if no names are requested
    and they are language codes, or `in_order` says so.
    """
    source, target = (_find_field(names, name, name, ()) for name in requested)
    if source is None and target is None and len(names) == 2:
        are_codes = all(re.fullmatch(LANGUAGE_PATTERN, name) for name in names)
        if list(names) == ["1", "2"] or (requested == PAIR_FIELDS and (in_order or are_codes)):
            source, target = names
    source = source or _raise_unclear(names, requested[0], file=file, noun="source")
    return source, target or _raise_unclear(names, requested[1], file=file, noun="target")


def _find_field(names: Sequence[str], requested: str | None, default: str, usual: Sequence[str]) -> str | None:
    """Return a requested column, by name or number; else the default one, or the only one with a usual name."""
    if requested is not None:
        if requested in names:
            return requested
        number = int(requested) if requested.isdecimal() else 0
        return names[number - 1] if 0 < number <= len(names) else None
    if default in names:
        return default
    known = [name for name in names if name.strip().lower() in usual]
    return known[0] if len(known) == 1 else None


def _raise_unclear(names: Sequence[str], requested: str | None, *, file: str, noun: str) -> Any:
    columns = f"its columns are {list_some([repr(name[:40]) for name in names], limit=_SHOWN)}"
    if requested is not None:
        raise UsageError(f"{file}: no column {requested!r}; {columns}")
    raise UsageError(f"{file}: which column holds the {noun}? Set {noun}_column; {columns}")


def parse_rows(rows: Iterable[Row], parse: Callable[[Row], T], *, on_malformed: MalformedRowCallback) -> Iterator[T]:
    """Yield what each row, without fields that are null, is parsed to; `parse` raises InputError if it is malformed."""
    for row in rows:
        try:
            parsed = parse(row.without_nulls())
        except InputError as error:
            on_malformed(row.number, error)
        else:
            yield parsed


def read_text(row: Row, field: str) -> str:
    """Return the text in a field of a row; InputError if there is none, or it cannot be encoded as UTF-8."""
    if field not in row.values:
        raise InputError(f"{row.where}: no field {field!r}; it has {list_fields(row.values)}")
    return check_text(row.values[field], f"{row.where}: field {field!r}")


def check_text(value: object, where: str) -> str:
    """Return a value if it is text that can be encoded as UTF-8, else raise InputError."""
    if not isinstance(value, str):
        raise InputError(f"{where} is not text but {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} has half a character") from None
    return value


def list_fields(values: Mapping[str, Any]) -> str:
    return ", ".join(list(values)[:10]) or "nothing"


def normalize_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Normalise line ends in the texts of rows."""
    for row in rows:
        changed = {name: normalize_line_ends(value) for name, value in row.values.items()
                   if isinstance(value, str) and "\r" in value}  # fmt: skip
        yield row._replace(values={**row.values, **changed}) if changed else row
