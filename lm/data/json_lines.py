"""JSON Lines: an object a line, one of its fields the text of a document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from lm import options
from lm.errors import InputError

SUFFIXES = (".jsonl", ".ndjson")

LONGEST_LINE = 1 << 28
"""Characters; a longer line is no JSON Lines, and is not read into memory."""


def texts(blocks: Iterable[str], field: str, *, name: str) -> Iterator[str]:
    """The text of each document; blank lines are skipped.

    Args:
        blocks: the file's text, cut anywhere.
        field: the key of the text in each object.
        name: of the file, for messages.

    Raises:
        InputError: a line is no JSON object, or has no text in that field; the message names file and line.
    """
    for number, line in enumerate(_lines(blocks, name), 1):
        if line.strip():
            yield _text(line, field, f"{name}: line {number}")


def is_document(line: bytes, field: str) -> bool:
    """Whether a line is a JSON object with text in a field."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and isinstance(document.get(field), str)


def _lines(blocks: Iterable[str], name: str) -> Iterator[str]:
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


def _text(line: str, field: str, where: str) -> str:
    try:
        document = json.loads(line.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: JSON that cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(
            f"{where}: not a JSON object but {_kind(document)}; each line is one, such as {{{_dump(field)}: …}}"
        )
    if field not in document:
        known = ", ".join(list(document)[:10]) or "nothing"
        hint = options.suggestion(field, document)
        raise InputError(f"{where}: no field {field!r}{hint}; it has {known} (--field)")
    text = document[field]
    if not isinstance(text, str):
        raise InputError(f"{where}: field {field!r} is not text but {_kind(text)} (--field)")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: field {field!r} has half a character (\\u{ord(text[error.start]):04x})") from None
    return text


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _dump(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
