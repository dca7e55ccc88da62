"""JSON Lines: each line is an object with texts in its fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lm.errors import InputError
from lm.text.rows import Row, kind

SUFFIXES = (".jsonl", ".ndjson")

LONGEST_LINE = 1 << 28
"""Characters; a longer line is not read into memory."""


def rows(blocks: Iterable[str], *, name: str, example: str) -> Iterator[Row]:
    """Each line as a row; blank lines are skipped.

    Args:
        blocks: the file's text, cut anywhere.
        name: of the file, for messages.
        example: what a line may look like, for messages.

    Raises:
        InputError: a line is not a JSON object; the message names file and line.
    """
    for number, line in enumerate(lines(blocks, name=name), 1):
        if line.strip():
            where = f"{name}: line {number}"
            yield Row(number, where, _object(line, where, example))


def document_line(field: str) -> str:
    """What a line may look like that holds a document in a field, for messages."""
    return f"{{{json.dumps(field, ensure_ascii=False)}: …}}"


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
        problem = f"not JSON ({error.msg.removesuffix(' at')} at column {error.colno})"  # some end in "at"
        raise InputError(f"{where}: {problem}; each line is an object, such as {example}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: JSON that cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: not a JSON object but {kind(document)}; each line is one, such as {example}")
    return document
