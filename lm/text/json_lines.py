"""JSON Lines and JSON arrays of objects, read in bounded memory."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lm.errors import InputError
from lm.text.normalization import BYTE_ORDER_MARK
from lm.text.rows import MalformedRowCallback, Row, raise_malformed

SUFFIXES = (".jsonl", ".ndjson")
ARRAY_SUFFIX = ".json"

MAX_LINE_CHARACTERS = 1 << 28
"""Maximum line length, to bound memory."""

_SPACE = re.compile(r"[\ufeff\s]*")
_NEAR_END = 16
"""Characters: a parse error this near the end of the buffer may be due to truncation."""


def parse_rows(
    blocks: Iterable[str], *, name: str, on_malformed: MalformedRowCallback = raise_malformed
) -> Iterator[Row]:
    """Yield each non-blank line as a row; a line that is no JSON object is malformed."""
    for number, line in enumerate(split_lines(blocks, name=name), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            problem = "" if isinstance(values, dict) else "not a JSON object"
        except json.JSONDecodeError as error:
            problem = f"not JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        except (ValueError, RecursionError) as error:
            problem = f"JSON that cannot be read ({error})"
        if problem:
            on_malformed(number, InputError(f"{name}: line {number}: {problem}"))
        else:
            yield Row(number, f"{name}: line {number}", values)


def parse_array(
    blocks: Iterable[str], *, name: str, on_malformed: MalformedRowCallback = raise_malformed
) -> Iterator[Row]:
    """Yield the objects of a JSON array as rows, a few at a time; a value that is no object is malformed.

    Raises:
        InputError: it is no array, or not JSON.
    """
    blocks, decoder, text, position = iter(blocks), json.JSONDecoder(), "", 0

    def read(minimum: int) -> bool:
        """Read at least so many characters after the position; False at the end of the text."""
        nonlocal text, position
        parts, length = [text[position:]], 0
        for block in blocks:
            parts.append(block)
            length += len(block)
            if length >= minimum:
                break
        text, position = "".join(parts), 0
        return length > 0

    def next_letter() -> str:
        """Skip white space; returns the character there, empty at the end."""
        nonlocal position
        while True:
            match = _SPACE.match(text, position)
            position = match.end() if match else position
            if position < len(text) or not read(1):
                return text[position : position + 1]

    if next_letter() != "[":
        raise InputError(f"{name}: not a JSON array of objects")
    position += 1
    for number in itertools.count(1):
        where = f"{name}: record {number}"
        letter = next_letter()
        if letter == "," and number > 1:
            position += 1
            next_letter()
        elif letter == "]":
            return
        elif number > 1:
            raise InputError(f"{where}: not JSON (the array ends too early, or a comma is missing)")
        while True:
            try:
                value, position = decoder.raw_decode(text, position)
                break
            except json.JSONDecodeError as error:
                may_be_cut = error.msg.startswith("Unterminated") or error.pos >= len(text) - _NEAR_END
                length = len(text) - position
                if not (may_be_cut and length <= MAX_LINE_CHARACTERS and read(max(1, length))):
                    raise InputError(f"{where}: not JSON ({error.msg.removesuffix(' at')})") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: JSON that cannot be read ({error})") from None
        if isinstance(value, dict):
            yield Row(number, where, value)
        else:
            on_malformed(number, InputError(f"{where}: not a JSON object"))


def is_array(beginning: bytes) -> bool:
    """Return whether a file with this beginning is a JSON array of objects."""
    return re.match(rb"(\xef\xbb\xbf)?\s*\[\s*\{", beginning) is not None


def parse_first_line(line: bytes) -> Mapping[str, Any] | None:
    """Return the fields of a JSON object that are not null; None if the line is something else."""
    try:
        values = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return None
    return {name: value for name, value in values.items() if value is not None} if isinstance(values, dict) else None


def split_lines(blocks: Iterable[str], *, name: str) -> Iterator[str]:
    """Yield lines ended by LF only, without a byte order mark; the part after the last LF is a line, even if empty.

    Raises:
        InputError: a line is longer than `MAX_LINE_CHARACTERS`.
    """
    number, pending, length = 1, [""], 0
    for block in blocks:
        first, *others = block.split("\n")
        pending.append(first)
        length += len(first)
        for part in others:
            yield "".join(pending).removeprefix(BYTE_ORDER_MARK if number == 1 else "")
            number, pending, length = number + 1, [part], len(part)
        if length > MAX_LINE_CHARACTERS:
            raise InputError(f"{name}: line {number} is longer than {MAX_LINE_CHARACTERS:,} characters")
    yield "".join(pending).removeprefix(BYTE_ORDER_MARK if number == 1 else "")
