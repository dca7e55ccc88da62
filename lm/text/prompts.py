"""Prompts from a file: one per line, or JSON objects or Parquet rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from lm.errors import InputError
from lm.text.decode import split_lines
from lm.text.text_file import TextFile, Values, read_column


class RepeatCounter:
    """Counts equal texts by 8-byte hashes, so that memory stays small."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def count(self, text: str) -> int:
        """Return how often a text was counted before this call."""
        self._counts[hash(text)] += 1
        return self._counts[hash(text)] - 1


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
    lines = (Prompt(0, text, f"{file.name}: line {line}") for line, text in enumerate(split_lines(file.text()), 1))
    for number, prompt in enumerate(file.parsed_rows(partial(_parse_row, file.name)) if file.has_rows else lines):
        repeat = repeats.count(prompt.text) if prompt.seed is None else 0
        yield replace(prompt, number=number, repeat=repeat)


def _parse_row(name: str, values: Values, line: int) -> Prompt:
    text = read_column(values, "text" if values.get("prompt") is None else "prompt")
    given = {key: values[key] for key in ("seed", "max_tokens") if values.get(key) not in (None, "")}
    try:
        return Prompt(0, text, f"{name}: line {line}", **{key: int(value) for key, value in given.items()})
    except (TypeError, ValueError):
        raise InputError("seed and max_tokens are integers") from None
