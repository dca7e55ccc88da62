"""Rows with named fields (JSON, CSV, TSV, Parquet): which columns hold texts, labels and sentence pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, NoReturn, TypeVar

from lm.config import settings as options
from lm.config.data import LANGUAGE_PATTERN
from lm.errors import InputError, UsageError, list_some
from lm.text import normalization
from lm.text.normalization import TextChanges

FIELD, LABEL = "text", "label"
PAIR_FIELDS = "source", "target"
_TEXTS = ("text", "content", "sentence", "review", "message", "body", "comment", "document", "tweet", "article")
_LABELS = ("label", "category", "class", "target", "sentiment", "intent", "topic")
_PROMPTS = ("prompt", "user", "question", "instruction", "input", "human", "query", "message")
_REPLIES = ("response", "completion", "assistant", "answer", "output", "reply", "gpt", "bot")
_SHOWN, _SHOWN_LETTERS = 20, 40
_NAMED_ROWS, _SEARCHED_ROWS = 10, 100_000

T = TypeVar("T")


MalformedRowCallback = Callable[[int, InputError], None]
"""Called with the number of a malformed row, and its error, which it may raise."""


def raise_malformed(number: int, error: InputError) -> None:  # noqa: ARG001 (a `MalformedRowCallback`)
    raise error


def raise_skippable(number: int, error: InputError) -> None:  # noqa: ARG001 (a `MalformedRowCallback`)
    """Raise the error of a malformed row, with the setting that skips such rows."""
    raise InputError(str(error), settings=[*error.settings, "skip_malformed"])


@contextmanager
def without_skip_hint() -> Iterator[None]:
    """Raise errors of rows without the setting that skips them, where none is skipped."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error), settings=[name for name in error.settings if name != "skip_malformed"]) from None


class Row(NamedTuple):
    """A row of a file.

    Attributes:
        number: its row or line number, from 1.
        where: file and number, for messages.
    """

    number: int
    where: str
    values: Mapping[str, Any]

    def without_nulls(self) -> Row:
        """Return the row without the fields that are null, which are as good as absent."""
        return self._replace(values={name: value for name, value in self.values.items() if value is not None})


def find_text_field(names: Sequence[str], requested: str | None, *, file: str) -> str:
    """Return the column that holds the text.

    Args:
        names: of all columns, in order.
        requested: its name, or its number from 1; None for the one with a usual name, or the only one.

    Raises:
        UsageError: there is no such column, or it isn't clear which one is meant.
    """
    return guess_text_field(names, requested) or _raise_unclear_column(
        names, requested, file=file, noun="text", setting="text_column"
    )


def raise_unclear_field(names: Sequence[str], *, file: str) -> NoReturn:
    """Refuse records whose text isn't in a field with a usual name, and list their fields."""
    _refuse_dialogue(names, file=file)
    shown = list_some([repr(shorten(name)) for name in names], limit=_SHOWN)
    raise UsageError(f"{file}: which column holds the text? Name it; the columns are {shown}", settings=["text_column"])


def find_dialogue_fields(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the columns of a prompt and its response, such as user and assistant, if their names are usual."""
    known = [name for usual in (_PROMPTS, _REPLIES) for name in names if name.strip().lower() in usual]
    return (known[0], known[1]) if len(known) == 2 and known[1].strip().lower() in _REPLIES else None


def _refuse_dialogue(names: Sequence[str], *, file: str) -> None:
    """Raise UsageError if two columns hold prompts and responses, with both ways to train on them."""
    if (fields := find_dialogue_fields(names)) is not None:
        prompt, response = fields
        raise UsageError(
            f"{file}: rows have a prompt {prompt!r} and a response {response!r}: to learn the responses, name the "
            f"columns of supervised examples; to learn one column as text, name that alone; {_list_columns(names)}",
            settings=["supervised", f"text_column={prompt}", f"label_column={response}"],
        )


def guess_text_field(names: Sequence[str], requested: str | None) -> str | None:
    """Return the column of the text as `find_text_field` does; None if it isn't clear."""
    if requested is None and FIELD not in names and find_dialogue_fields(names) is not None:
        return None
    return _find_field(names, requested, FIELD, _TEXTS) or (names[0] if len(names) == 1 and requested is None else None)


def find_label_fields(
    names: Sequence[str], text: str | None, label: str | None, *, file: str, is_table: bool = True
) -> tuple[str, str]:
    """Return the columns of text and label; arguments and errors as of `find_text_field`.

    Of two columns, knowing one determines the other. `is_table` says whether the names may be a first row of data.
    """
    unclear = partial(_raise_unclear_column, names, file=file, is_table=is_table)
    label_name = _find_field(names, label, LABEL, _LABELS)
    text_name = _find_field(
        [name for name in names if name != label_name] if text is None else names, text, FIELD, _TEXTS
    )
    if len(names) == 2 and (label_name is None) != (text_name is None):
        other = next(name for name in names if name not in (label_name, text_name))
        label_name = other if label_name is None and label is None else label_name
        text_name = other if text_name is None and text is None else text_name
    text_name = text_name or unclear(text, noun="text", setting="text_column")
    label_name = label_name or unclear(label, noun="label", setting="label_column")
    if text_name == label_name:
        raise UsageError(
            f"{file}: text and label are both column {text_name!r}", settings=["text_column", "label_column"]
        )
    return text_name, label_name


def find_pair_fields(
    names: Sequence[str], requested: tuple[str, str], *, file: str, in_order: bool = False
) -> tuple[str, str]:
    """Return the columns of source and target.

    Two columns of other names are source and target in this order if they have no names, or if no names are requested
    and they are language codes, or `in_order` says so.
    """
    source, target = (_find_field(names, name, name, ()) for name in requested)
    if source is None and target is None and len(names) == 2:
        are_codes = all(re.fullmatch(LANGUAGE_PATTERN, name) for name in names)
        if list(names) == ["1", "2"] or (requested == PAIR_FIELDS and (in_order or are_codes)):
            source, target = names
    source = source or _raise_unclear_column(names, requested[0], file=file, noun="source", setting="source_column")
    return source, target or _raise_unclear_column(
        names, requested[1], file=file, noun="target", setting="target_column"
    )


def list_label_fields(names: Iterable[str]) -> list[str]:
    """Return the columns whose names are usual for labels."""
    return [name for name in names if name.strip().lower() in _LABELS]


def has_label_fields(names: Sequence[str]) -> bool:
    """Return whether the columns of text and label are clear."""
    try:
        return bool(find_label_fields(names, None, None, file=""))
    except UsageError:
        return False


def _find_field(names: Sequence[str], requested: str | None, default: str, alternatives: Sequence[str]) -> str | None:
    if requested is not None:
        if (
            requested not in names
            and requested.isascii()
            and requested.isdecimal()
            and 1 <= int(requested) <= len(names)
        ):
            return names[int(requested) - 1]
        return requested if requested in names else None
    if default in names:
        return default
    known = [name for name in names if name.strip().lower() in alternatives]
    return known[0] if len(known) == 1 else None


def raise_unclear_pair(names: Sequence[str], *, file: str) -> NoReturn:
    """Raise UsageError for a table of more than two columns of which none are named."""
    raise UsageError(
        f"{file}: which columns hold source and target? Name them, or their numbers and whether the first row is a "
        f"header; {_list_columns(names)}",
        settings=["source_column", "target_column", "header"],
    )


def _list_columns(names: Sequence[str]) -> str:
    numbered = [f"{number} {shorten(name)!r}" for number, name in enumerate(names, 1)]
    return f"its columns are {list_some(numbered, limit=_SHOWN)}"


def _raise_unclear_column(
    names: Sequence[str], requested: str | None, *, file: str, noun: str, setting: str, is_table: bool = True
) -> NoReturn:
    if requested is None and noun == "text":
        _refuse_dialogue(names, file=file)
    columns, settings = _list_columns(names), [setting, *(["no_header"] * is_table)]
    if requested is not None:
        hint = options.did_you_mean(requested, names)
        advice = "name it, or its number" + ", or say that there is no header" * is_table
        raise UsageError(f"{file}: no column {requested!r}{hint}; {columns}; {advice}", settings=settings)
    is_header = "; if that is no header, say so" * is_table
    may_be_pair = noun == "text" and len(names) == 2
    pairs = "; if one is the translation of the other, give the file as sentence pairs" * may_be_pair
    raise UsageError(
        f"{file}: which column holds the {noun}? Name it, or its number; {columns}{is_header}{pairs}",
        settings=[*settings, *["pairs"] * may_be_pair],
    )


def shorten(text: str) -> str:
    """Cut a text to the length that messages quote."""
    return text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 1] + "…"


def parse_rows(rows: Iterable[Row], parse: Callable[[Row], T], *, on_malformed: MalformedRowCallback) -> Iterator[T]:
    """Yield what each row, without fields that are null, is parsed to.

    Args:
        parse: raises InputError if a row is malformed.

    Raises:
        InputError: raised by `on_malformed`; the message names the next malformed rows as well.
    """
    rows = (row.without_nulls() for row in rows)
    for row in rows:
        try:
            parsed = parse(row)
        except InputError as error:
            try:
                on_malformed(row.number, error)
            except InputError as refused:
                others = list(islice(_find_malformed(islice(rows, _SEARCHED_ROWS), parse), _NAMED_ROWS + 1))
                also = f"; malformed too: {list_some(others, limit=_NAMED_ROWS)}" if others else ""
                raise InputError(f"{refused}{also}", settings=refused.settings) from None
        else:
            yield parsed


def _find_malformed(rows: Iterable[Row], parse: Callable[[Row], object]) -> Iterator[str]:
    """Yield the places of malformed rows, such as line 7, up to a row that cannot be read."""
    with suppress(InputError):
        for row in rows:
            try:
                parse(row)
            except InputError:
                yield row.where.rpartition(": ")[2]


def read_texts(
    rows: Iterable[Row], field: str, *, on_malformed: MalformedRowCallback = raise_malformed
) -> Iterator[str]:
    """Yield the text in a field of each row.

    Raises:
        InputError: a row has no text in that field; the message names file and row.
    """
    return parse_rows(rows, partial(_find_text, field=field), on_malformed=on_malformed)


def _find_text(row: Row, field: str) -> str:
    if field not in row.values:
        hint = options.did_you_mean(field, row.values)
        raise InputError(
            f"{row.where}: no field {field!r}{hint}; it has {list_fields(row.values)}", settings=["text_column"]
        )
    return read_text(row, field, settings=["text_column"])


def read_text(row: Row, field: str, *, settings: Sequence[str] = ()) -> str:
    """Return the text in a field of a row.

    Args:
        settings: those that choose another field, for messages.

    Raises:
        InputError: the value is not text, or cannot be encoded as UTF-8.
    """
    value = row.values[field]
    if not isinstance(value, str):
        raise InputError(f"{row.where}: field {field!r} is not text but {describe_type(value)}", settings=settings)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise InputError(f"{row.where}: field {field!r} has half a character ({half})") from None
    return value


def list_fields(values: Mapping[str, Any]) -> str:
    return ", ".join(list(values)[:10]) or "nothing"


def describe_type(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
        int: "a number",
        float: "a number",
        bytes: "bytes",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def normalize_rows(rows: Iterable[Row], changes: TextChanges) -> Iterator[Row]:
    """Normalise line ends in the texts of rows; records in `changes` whether any changed."""
    for row in rows:
        ended = {name: normalization.normalize_line_ends(value) for name, value in row.values.items()
                 if isinstance(value, str) and "\r" in value}  # fmt: skip
        changed = {name: value for name, value in ended.items() if value != row.values[name]}
        changes.line_ends = changes.line_ends or bool(changed)
        yield row._replace(values={**row.values, **changed}) if changed else row
