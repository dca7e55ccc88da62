"""Prompts from a file: one per line, or JSON objects or Parquet rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from lm.config.decoding import SamplingConfig
from lm.config.settings import list_settings
from lm.errors import InputError, UsageError
from lm.text.decode import decode_lines, read_blocks
from lm.text.text_file import TextFile, Values, read_column

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

    Each line is a prompt; an empty line is an empty prompt. Of JSON, CSV, TSV or Parquet it is each row, with `prompt`
    or `text`, and optionally `seed` and `max_tokens`.

    Raises:
        InputError: the file is damaged or not UTF-8, or a row has no prompt.
    """
    repeats = RepeatCounter()
    lines = enumerate(decode_lines(read_blocks(file.path, file.name), file.name), 1)
    prompts = (Prompt(0, text, f"{file.name}: line {line}") for line, text in lines)
    for number, prompt in enumerate(file.parsed_rows(partial(_parse_row, file.name)) if file.has_rows else prompts):
        repeat = repeats.count(prompt.text) if prompt.seed is None else 0
        yield replace(prompt, number=number, repeat=repeat)


def _parse_row(name: str, values: Values, line: int) -> Prompt:
    numbers = {}
    for setting in list_settings("sampling", SamplingConfig):
        if setting.name in ("seed", "max_tokens") and (value := values.get(setting.name)) not in (None, ""):
            try:
                numbers[setting.name] = int(setting.convert(value, setting.name))
            except UsageError as error:
                raise InputError(str(error)) from None
    text = read_column(values, "text" if values.get("prompt") is None else "prompt")
    return Prompt(0, text, f"{name}: line {line}", **numbers)
