"""Supervised examples: a prompt and its completion.

Each row of JSON Lines, a JSON array, CSV, TSV or Parquet is an example in one of three forms:

    {"prompt": "12 + 30 = ", "completion": "42"}
    {"text": "What a lovely day.", "label": "joy"}
    {"instruction": "Translate to German.", "input": "Good morning.", "output": "Guten Morgen."}

For a label, the text is the prompt, and the completion is a line feed (the delimiter of GPT-1) and the label. So a
model is trained on exactly what `lm generate` asks of it, and no delimiter has to be added by hand. An output is like a
label, after the instruction and, if there is one, a line feed and the input.

Source: Radford et al. 2018, section 3.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lm.errors import InputError
from lm.text.rows import MalformedRowCallback, Row, list_fields, parse_rows, raise_malformed, read_text

_FORMS = ("prompt", "completion"), ("text", "label"), ("instruction", "output")
_INPUT = "input"
EXAMPLE_FIELDS = (*(name for form in _FORMS for name in form), _INPUT)
LABEL_DELIMITER = "\n"

_DESCRIBED_FORMS = "'prompt' and 'completion', 'text' and 'label', or 'instruction' and 'output'"


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its completion.

    Attributes:
        prompt: may be empty.
        completion: never empty.
        line: its line number in the file, from 1.
    """

    prompt: str
    completion: str
    line: int

    @property
    def texts(self) -> tuple[str, str]:
        return self.prompt, self.completion

    @property
    def label(self) -> str:
        return parse_label(self.completion)

    def to_json(self) -> str:
        return json.dumps({"prompt": self.prompt, "completion": self.completion}, ensure_ascii=False)


def parse_label(completion: str) -> str:
    """Return the label in a completion: the text after the delimiter, or all of it."""
    return completion.removeprefix(LABEL_DELIMITER)


def parse_examples(
    rows: Iterable[Row],
    columns: tuple[str, str] | None = None,
    *,
    on_malformed: MalformedRowCallback = raise_malformed,
) -> Iterator[Example]:
    """Yield the examples in the rows of a file.

    Args:
        columns: of text and label [default: detected per row].
        on_malformed: called with rows that are no example [default: raise the error].

    Raises:
        InputError: a row is not an example; the message names file, row and field.
    """
    return parse_rows(rows, partial(_parse_example, columns=columns), on_malformed=on_malformed)


def _parse_example(row: Row, columns: tuple[str, str] | None) -> Example:
    first, second = columns or _find_fields(row.values, row.where)
    is_label = columns is not None or second != "completion"
    completion = _read_label(row, second) if is_label else read_text(row, second)
    if not completion:
        raise InputError(f"{row.where}: field {second!r} is empty, so there is nothing to learn")
    prompt = read_text(row, first)
    if columns is None and first == "instruction" and row.values.get(_INPUT):
        prompt += f"\n{read_text(row, _INPUT)}"
    return Example(prompt, LABEL_DELIMITER + completion if is_label else completion, row.number)


def has_example_form(names: Iterable[str]) -> bool:
    """Return whether all fields of a form are there."""
    return bool(_list_forms(names))


def has_example_fields(names: Iterable[str]) -> bool:
    """Return whether there are the fields of a form, or one that only examples have: prompt, completion or label."""
    return has_example_form(names) or not {"prompt", "completion", "label"}.isdisjoint(names)


def _list_forms(names: Iterable[str]) -> list[tuple[str, str]]:
    names = {*names}
    return [form for form in _FORMS if names.issuperset(form)]


def _find_fields(values: Mapping[str, Any], where: str) -> tuple[str, str]:
    forms = _list_forms(values)
    if len(forms) != 1:
        raise InputError(f"{where}: needs either {_DESCRIBED_FORMS}; it has {list_fields(values)}")
    return forms[0]


def _read_label(row: Row, field: str) -> str:
    """Return a label as text; numbers and booleans are written as in JSON."""
    label = row.values.get(field)
    return json.dumps(label) if isinstance(label, bool | int | float) else read_text(row, field)
