"""JSON Lines and JSON arrays of objects, read in bounded memory."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lm.errors import InputError
from lm.text.rows import MalformedRowCallback, Row, describe_type, raise_malformed

SUFFIXES = (".jsonl", ".ndjson")
ARRAY_SUFFIX = ".json"

MAX_LINE_CHARACTERS = 1 << 28
"""Maximum line length, to bound memory."""


def parse_rows(
    blocks: Iterable[str], *, name: str, example: str, on_malformed: MalformedRowCallback = raise_malformed
) -> Iterator[Row]:
    """Yield each non-blank line as a row.

    Args:
        blocks: the text, cut anywhere.
        example: a valid line, for messages.
        on_malformed: called with lines that are no JSON object [default: raise the error].

    Raises:
        InputError: a line is not a JSON object; the message names file and line.
    """
    for number, line in enumerate(split_lines(blocks, name=name), 1):
        if line.strip():
            where = f"{name}: line {number}"
            try:
                values = _parse_object(line, where, example)
            except InputError as error:
                on_malformed(number, error)
            else:
                yield Row(number, where, values)


def parse_array(
    blocks: Iterable[str], *, name: str, example: str, on_malformed: MalformedRowCallback = raise_malformed
) -> Iterator[Row]:
    """Yield the objects of a JSON array as rows, a few at a time.

    Args:
        blocks: the text, cut anywhere.
        example: a valid object, for messages.
        on_malformed: called with values that are no object [default: raise the error].

    Raises:
        InputError: it is not an array of objects; the message names file and object.
    """
    buffer = _TextBuffer(blocks)
    buffer.skip(_SPACE)
    if buffer.next_letter != "[":
        raise InputError(
            f"{name}: not an array of objects, as JSON files of records are; is it of another format?",
            settings=["format"],
        )
    buffer.position += 1
    for number in itertools.count(1):
        where = f"{name}: record {number}"
        buffer.skip(_SPACE)
        if buffer.next_letter == "," and number > 1:
            buffer.position += 1
            buffer.skip(_SPACE)
        elif buffer.next_letter == "]":
            return
        elif number > 1:
            raise InputError(f"{where}: not JSON (the array ends too early, or a comma is missing before it)")
        value = buffer.value(where)
        if isinstance(value, dict):
            yield Row(number, where, value)
        else:
            problem = f"{where}: not a JSON object but {describe_type(value)}; each record is one, such as {example}"
            on_malformed(number, InputError(problem))


_SPACE = re.compile(r"[\ufeff\s]*")
_NEAR_END = 16
"""Characters: a parse error this near the end of the buffer may be due to truncation."""


class _TextBuffer:
    """A sliding window over a text; reads more as needed."""

    def __init__(self, blocks: Iterable[str]) -> None:
        self._blocks, self._text, self.position = iter(blocks), "", 0
        self._decoder = json.JSONDecoder()

    @property
    def next_letter(self) -> str:
        """Return the character at the position; empty at the end."""
        return self._text[self.position : self.position + 1]

    def skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            match = pattern.match(self._text, self.position)
            self.position = match.end() if match else self.position
            if self.position < len(self._text) or not self._read(1):
                return

    def value(self, where: str) -> Any:
        """Parse the JSON value at the position; InputError if it is invalid."""
        while True:
            try:
                value, self.position = self._decoder.raw_decode(self._text, self.position)
                return value
            except json.JSONDecodeError as error:
                may_be_cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _NEAR_END
                length = len(self._text) - self.position
                if not (may_be_cut and length <= MAX_LINE_CHARACTERS and self._read(max(1, length))):
                    problem = f"not JSON ({error.msg.removesuffix(' at')})"
                    raise InputError(f"{where}: {problem}; records are objects in an array") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: JSON that cannot be read ({error})") from None

    def _read(self, minimum: int) -> bool:
        """Read at least the given number of characters; False at the end of the text."""
        parts, length = [self._text[self.position :]], 0
        for block in self._blocks:
            parts.append(block)
            length += len(block)
            if length >= minimum:
                break
        self._text, self.position = "".join(parts), 0
        return length > 0


def is_array(beginning: bytes) -> bool:
    """Return whether a file with this beginning is a JSON array of objects."""
    return re.match(rb"(\xef\xbb\xbf)?\s*\[\s*\{", beginning) is not None


def example_document_line(field: str) -> str:
    """Return a valid line with a document in a field, for messages."""
    return f"{{{json.dumps(field, ensure_ascii=False)}: …}}"


def parse_first_line(line: bytes) -> Mapping[str, Any] | None:
    """Return the fields of a JSON object that are not null; None if the line is something else."""
    try:
        values = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return None
    return {name: value for name, value in values.items() if value is not None} if isinstance(values, dict) else None


def split_lines(blocks: Iterable[str], *, name: str) -> Iterator[str]:
    """Yield lines ended by LF only; the part after the last LF is a line, even if empty.

    Raises:
        InputError: a line is longer than `MAX_LINE_CHARACTERS`.
    """
    number, pending, length = 1, [""], 0
    for block in blocks:
        first, *others = block.split("\n")
        pending.append(first)
        length += len(first)
        for part in others:
            yield "".join(pending)
            number, pending, length = number + 1, [part], len(part)
        if length > MAX_LINE_CHARACTERS:
            raise InputError(
                f"{name}: line {number} is longer than {MAX_LINE_CHARACTERS:,} characters; give each document one"
            )
    yield "".join(pending)


def _parse_object(line: str, where: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(line.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg.removesuffix(' at')} at column {error.colno})"  # some end in "at"
        raise InputError(f"{where}: {problem}; each line is an object, such as {example}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: JSON that cannot be read ({error})") from None
    if not isinstance(document, dict):
        raise InputError(
            f"{where}: not a JSON object but {describe_type(document)}; each line is one, such as {example}"
        )
    return document
