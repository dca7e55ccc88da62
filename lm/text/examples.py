"""Examples to learn from: a prompt, and the completion that a model is to give.

Each line of a JSON Lines file is an example, in either of two forms:

    {"prompt": "12 + 30 = ", "completion": "42"}
    {"text": "What a lovely day.", "label": "joy"}

A label is a completion on a line of its own: the text is the prompt as it is, and the model answers with a line feed,
which stands for the delimiter of GPT-1, and the label. So a model is trained on just
what `lm generate` asks of it, and no character has to be put between prompt and completion by hand.

Source: Radford et al. 2018, section 3.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lm.config import options
from lm.errors import InputError
from lm.text import json_lines

FIELDS = ("prompt", "completion", "text", "label")
DELIMITER = "\n"

_EXAMPLE = '{"prompt": …, "completion": …}, in the JSON Lines (.jsonl) that --supervised reads'
_FORMS = "'prompt' and 'completion', or 'text' and 'label'"


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its completion.

    Attributes:
        prompt: the text that is given; may be empty.
        completion: the text that is to be learned; never empty.
        line: the number of its line in the file, from 1.
    """

    prompt: str
    completion: str
    line: int


def examples(blocks: Iterable[str], *, name: str) -> Iterator[Example]:
    """The examples of a JSON Lines file.

    Args:
        blocks: the file's text, cut anywhere.
        name: of the file, for messages.

    Raises:
        InputError: a line is not an example; the message names the file, the line and what is wrong with it.
    """
    for number, values in json_lines.objects(blocks, name=name, example=_EXAMPLE):
        where = f"{name}: line {number}"
        first, second = _form(values, where)
        completion = json_lines.text(values, second, where=where) if second == "completion" else _label(values, where)
        if not completion:
            raise InputError(f"{where}: field {second!r} is empty, so there is nothing to learn; leave the line out")
        prompt = json_lines.text(values, first, where=where)
        yield Example(prompt, completion if second == "completion" else DELIMITER + completion, number)


def is_example(line: bytes) -> bool:
    """Whether a line is a JSON object with a field that only examples have: prompt, completion or label."""
    try:
        values = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and any(field in values for field in FIELDS if field != "text")


def _form(values: Mapping[str, Any], where: str) -> tuple[str, str]:
    """The two fields of the form in which a line is."""
    forms = [form for form in (FIELDS[:2], FIELDS[2:]) if all(field in values for field in form)]
    if len(forms) == 2:
        raise InputError(f"{where}: has {', '.join(FIELDS)}; give {_FORMS}, not both")
    if forms:
        return forms[0][0], forms[0][1]
    for field, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        if FIELDS[field] in values:
            hint = options.suggestion(FIELDS[other], values)
            raise InputError(f"{where}: no field {FIELDS[other]!r}{hint} beside {FIELDS[field]!r}")
    raise InputError(f"{where}: needs {_FORMS}; it has {json_lines.known(values)}")


def _label(values: Mapping[str, Any], where: str) -> str:
    """The text of a label; numbers, true and false count as they are written in JSON."""
    label = values["label"]
    return json.dumps(label) if isinstance(label, bool | int | float) else json_lines.text(values, "label", where=where)
