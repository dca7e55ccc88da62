"""Flags for the settings that messages of the library name: what to type stands at the end of the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cli.flags.usage import name_of
from lm.errors import Advice, LMError


def with_flags(message: LMError | Advice, command: Any, every: Callable[[], Any] | None = None) -> str:  # noqa: ANN401
    """A message of the library, with the flags of its settings.

    Args:
        message: an error or advice.
        command: the one that runs, as click has it.
        every: gives the group of all commands; a flag that `command` lacks is named with one that has it.
    """
    flags = [_flag_of(setting, command, every) for setting in message.settings]
    return f"{message} ({', '.join(flags)})" if flags else str(message)


def _flag_of(setting: str, command: Any, every: Callable[[], Any] | None) -> str:  # noqa: ANN401 (click's types)
    if (own := _option(command, setting)) is not None:
        return own
    for path, other in _commands(every(), "lm") if every else ():
        if (found := _option(other, setting)) is not None:
            return f"{path} {found}"
    return _plain(setting)


def _plain(setting: str) -> str:
    """`--batch-size` of `batch_size`."""
    return "--" + setting.replace("_", "-")


def _option(command: Any, setting: str) -> str | None:  # noqa: ANN401
    """The flag of a command for a setting: the one made of its field (`section__field`), or of its name."""
    options = [one for one in getattr(command, "params", ()) if one.param_type_name == "option"]
    for named in (
        lambda one: setting in (one.name, one.name.partition("__")[2]),
        lambda one: _plain(setting) in one.opts,
    ):
        if found := next(filter(named, options), None):
            return name_of(found)
    return None


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """All commands of a group, in order, each with what is typed to call it."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command
