"""Rows of named values, which JSON Lines and Parquet files have, and the texts in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lm.config import options
from lm.errors import InputError


class Row(NamedTuple):
    """A row of a file.

    Attributes:
        number: of the row or its line, from 1.
        where: the file and the number, with which messages begin.
        values: of the fields.
    """

    number: int
    where: str
    values: Mapping[str, Any]


def texts(rows: Iterable[Row], field: str) -> Iterator[str]:
    """The text in a field of each row.

    Raises:
        InputError: a row has no text in that field; the message names file and row.
    """
    for row in rows:
        if field not in row.values:
            hint = options.suggestion(field, row.values)
            raise InputError(f"{row.where}: no field {field!r}{hint}; it has {known(row.values)}", settings=["field"])
        yield text(row, field, settings=["field"])


def text(row: Row, field: str, *, settings: Sequence[str] = ()) -> str:
    """The text in a field of a row that has such a field.

    Args:
        row: the row.
        field: the name of the field.
        settings: those that name another field, for messages.

    Raises:
        InputError: the field holds something else than text, or text that cannot be written as UTF-8.
    """
    value = row.values[field]
    if not isinstance(value, str):
        raise InputError(f"{row.where}: field {field!r} is not text but {kind(value)}", settings=settings)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise InputError(f"{row.where}: field {field!r} has half a character ({half})") from None
    return value


def known(values: Mapping[str, Any]) -> str:
    """The names of the first few fields of a row, for messages."""
    return ", ".join(list(values)[:10]) or "nothing"


def kind(value: object) -> str:
    """The type of a value in words, for messages."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
        int: "a number",
        float: "a number",
        bytes: "bytes",
    }
    return names.get(type(value), f"a {type(value).__name__}")
