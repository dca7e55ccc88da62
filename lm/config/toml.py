"""Settings of a run from a TOML file, checked key by key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm.config.options import did_you_mean, format_value, list_options
from lm.config.presets import DEFAULT_PRESET, find_preset
from lm.config.run_config import SECTIONS
from lm.errors import InputError, UsageError


def read_toml(path: Path) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """Read settings from TOML: an optional `preset`, and a table per section of RunConfig.

    Returns:
        The preset's name if given, and section to {field: value}.

    Raises:
        InputError: the file is missing or not text.
        UsageError: it is not TOML, a key is unknown or a value wrong; the message names the file and suggests a fix.
    """
    values = _parse(path)
    name = values.pop("preset", None)
    if name is not None:
        if not isinstance(name, str):
            raise UsageError(
                f'{path}: preset must be a name, as in preset = "{DEFAULT_PRESET}", not {format_value(name)}'
            )
        with _prefix_errors(str(path)):
            find_preset(name)
    for section, fields in values.items():
        if section not in SECTIONS or not isinstance(fields, dict):
            raise UsageError(f"{path}: {_describe_unknown_key(section, fields)}")
        with _prefix_errors(f"{path}, [{section}]"):
            check_section(section, fields)
    return name, values


def _parse(path: Path) -> dict[str, Any]:
    """Parse a file; the message for one that is not TOML says what it may be."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", settings=("config",)) from None
    try:
        text = content.decode().removeprefix("\ufeff")  # the byte order mark that some editors write
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 at byte offset {error.start}", settings=("config",)) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if text.lstrip().startswith("{"):
            raise UsageError(
                f"{path}: this is JSON; settings come from a TOML file, as [model] and d_model = 96"
            ) from None
        raise UsageError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: not TOML: tables or lists are nested too deep") from None
    except ValueError as error:  # Python's own limit to the digits of an integer, of which it says how to lift it
        problem = "an integer has thousands of digits" if "digits" in str(error) else str(error)
        raise UsageError(f"{path}: not TOML: {problem}") from None


@contextmanager
def _prefix_errors(where: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise error.at(where) from None


def check_section(section: str, fields: Mapping[str, Any]) -> None:
    """Raise UsageError unless each name is an option of a section, with a valid value."""
    known = {option.name: option for option in list_options(SECTIONS[section])}
    for key, value in fields.items():
        if key not in known:
            raise UsageError(f"unknown key {key!r}{_suggest_tables(key) or did_you_mean(key, known)}")
        known[key].check(value)


def _describe_unknown_key(key: str, value: Any) -> str:  # noqa: ANN401 (whatever TOML can say)
    if isinstance(value, dict):
        return f"unknown table {key!r}{did_you_mean(key, ['preset', *SECTIONS])}"
    if key in SECTIONS:
        return f"{key} is a table: write [{key}] on a line, and its keys below"
    return f"unknown key {key!r}{_suggest_tables(key) or did_you_mean(key, ['preset', *SECTIONS])}"


def _suggest_tables(key: str) -> str:
    """Return ` (…)` with the tables of a misplaced option; else nothing."""
    options = [(section, option) for section in SECTIONS for option in list_options(SECTIONS[section])]
    if tables := [f"[{section}]" for section, option in options if option.name == key]:
        return f" (put it under {' or '.join(tables)})"
    meant = [f" (it is {option.name!r} under [{section}])" for section, option in options if option.setting == key]
    return meant[0] if meant else ""
