"""JSON Lines: each line is an object with texts in its fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lm.config import options
from lm.errors import InputError

SUFFIXES = (".jsonl", ".ndjson")

LONGEST_LINE = 1 << 28
"""Characters; a longer line is not read into memory."""


def texts(blocks: Iterable[str], field: str, *, name: str) -> Iterator[str]:
    """The text of each document; blank lines are skipped.

    Args:
        blocks: the file's text, cut anywhere.
        field: the key of the text in each object.
        name: of the file, for messages.

    Raises:
        InputError: a line is not a JSON object, or has no text in that field; the message names file and line.
    """
    for number, document in objects(blocks, name=name, example=f"{{{_dump(field)}: …}}"):
        where = f"{name}: line {number}"
        if field not in document:
            hint = options.suggestion(field, document)
            raise InputError(f"{where}: no field {field!r}{hint}; it has {known(document)} (--field)")
        yield text(document, field, where=where, hint=" (--field)")


def objects(blocks: Iterable[str], *, name: str, example: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number, from 1, and its object; blank lines are skipped.

    Args:
        blocks: the file's text, cut anywhere.
        name: of the file, for messages.
        example: what a line may look like, for messages.

    Raises:
        InputError: a line is not a JSON object; the message names file and line.
    """
    for number, line in enumerate(lines(blocks, name=name), 1):
        if line.strip():
            yield number, _object(line, f"{name}: line {number}", example)


def text(document: Mapping[str, Any], field: str, *, where: str, hint: str = "") -> str:
    """The text in a field of an object that has such a field.

    Args:
        document: the object.
        field: the name of the field.
        where: the file and the line, with which messages begin.
        hint: the flag that names another field, with which messages may end.

    Raises:
        InputError: the field holds something else than text, or text that cannot be written as UTF-8.
    """
    value = document[field]
    if not isinstance(value, str):
        raise InputError(f"{where}: field {field!r} is not text but {_kind(value)}{hint}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: field {field!r} has half a character (\\u{ord(value[error.start]):04x})") from None
    return value


def is_document(line: bytes, field: str) -> bool:
    """Whether a line is a JSON object with text in a field."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and isinstance(document.get(field), str)


def lines(blocks: Iterable[str], *, name: str) -> Iterator[str]:
    """The lines of a file, ended by line feeds alone; what follows the last line feed is a line, even if it is empty.

    Raises:
        InputError: a line is longer than `LONGEST_LINE`.
    """
    number, held, length = 1, [""], 0
    for block in blocks:
        first, *others = block.split("\n")
        held.append(first)
        length += len(first)
        for part in others:
            yield "".join(held)
            number, held, length = number + 1, [part], len(part)
        if length > LONGEST_LINE:
            raise InputError(
                f"{name}: line {number} is longer than {LONGEST_LINE:,} characters; give each document one"
            )
    yield "".join(held)


def _object(line: str, where: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(line.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg} at column {error.colno})"
        raise InputError(f"{where}: {problem}; each line is an object, such as {example}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: JSON that cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: not a JSON object but {_kind(document)}; each line is one, such as {example}")
    return document


def known(document: Mapping[str, Any]) -> str:
    """The names of the first few fields of an object, for messages."""
    return ", ".join(list(document)[:10]) or "nothing"


def _kind(value: object) -> str:
    """The type of a JSON value in words, for messages."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _dump(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
