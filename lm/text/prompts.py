"""Prompts from a file: one per line, or JSON objects or Parquet rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lm.config.decoding import SamplingConfig
from lm.config.settings import list_settings
from lm.errors import InputError, UsageError
from lm.text.compression import decode_lines, detect_compression, read_blocks
from lm.text.rows import Row, list_fields, read_text
from lm.text.text_files import BLOCK_BYTES, TextFile

_BYTES = 8


class RepeatCounter:
    """Counts equal texts by 8-byte hashes, so that memory stays small."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def count(self, text: str) -> int:
        """Return how often a text was counted before this call."""
        key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_BYTES).digest()
        before = self._counts.get(key, 0)
        self._counts[key] = before + 1
        return before


_FIELDS = ("prompt", "text")
_NUMBERS = ("seed", "max_tokens")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue.

    Attributes:
        number: its index in the file, from 0.
        text: may be empty.
        where: file and line, for messages.
        seed: its own sampling seed, if given.
        max_tokens: its own limit, if given.
        repeat: number of equal prompts before it; 0 for one with its own seed.
    """

    number: int
    text: str
    where: str
    seed: int | None = None
    max_tokens: int | None = None
    repeat: int = 0


def read_prompts(file: TextFile) -> Iterator[Prompt]:
    """Yield the prompts of a file.

    Each line is a prompt; an empty line is an empty prompt. In JSON Lines, each non-blank line is an object with
    `prompt` or `text`, and optionally `seed` and `max_tokens`; so is each Parquet row.

    Raises:
        InputError: the file is damaged or not UTF-8, or a line is not such an object; the message names file and line.
    """
    repeats = RepeatCounter()
    if file.holds_rows or file.holds_examples:
        for number, row in enumerate(file.rows([*_FIELDS, *_NUMBERS])):
            yield _parse_row(number, row.without_nulls(), repeats)
        return
    parts = read_blocks(file.path, detect_compression(file.path, file.name), BLOCK_BYTES, name=file.name)
    for number, line in enumerate(decode_lines(parts, name=file.name)):
        yield Prompt(number, line, f"{file.name}: line {number + 1}", repeat=repeats.count(line))


def _parse_row(number: int, row: Row, repeats: RepeatCounter) -> Prompt:
    field = next((name for name in _FIELDS if name in row.values), None)
    if field is None:
        raise InputError(f"{row.where}: no field 'prompt' nor 'text'; it has {list_fields(row.values)}")
    prompt, (seed, max_tokens) = read_text(row, field), (_parse_number(row, name) for name in _NUMBERS)
    return Prompt(number, prompt, row.where, seed, max_tokens, 0 if seed is not None else repeats.count(prompt))


def _parse_number(row: Row, name: str) -> int | None:
    value: Any = row.values.get(name)
    setting = next(each for each in list_settings("sampling", SamplingConfig) if each.name == name)
    try:
        return None if value in (None, "") else int(setting.convert(value, name))
    except UsageError as error:
        raise InputError(f"{row.where}: {error}") from None
