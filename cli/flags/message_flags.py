"""Add the flags of settings to library messages: what to type is at the end of the line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from cli.flags.usage import SET, Command, parameter_name, spell_no
from lm.config.options import Option, list_options
from lm.config.run_config import SECTIONS
from lm.errors import Advice, LMError

_PREFERRED_COMMANDS = ("lm train", "lm tokenizer train")
"""Commands to name if several have a flag."""


def with_flags(
    message: LMError | Advice | str,
    command: Command = None,
    all_commands: Callable[[], Command] | None = None,
) -> str:
    """Return a library message with the flags of its settings, which may have values (`part=1/2`); else unchanged.

    `command` is the running one; `all_commands` returns the group of all, to find one with a flag that it lacks.
    """
    flags = [_format_setting(setting, command, all_commands) for setting in getattr(message, "settings", ())]
    return f"{message} ({', '.join(flags)})" if flags else str(message)


def _format_setting(setting: str, command: Command, all_commands: Callable[[], Command] | None) -> str:
    """Return what to type to change a setting."""
    name, equals, value = setting.partition("=")
    own = (parameter_name(parameter) for parameter in getattr(command, "params", ()) if parameter.name == name)
    flag = next(own, None) or _declared_flags().get(name, "--" + name.replace("_", "-"))
    text = flag + ("=" if flag.startswith(SET) else " ") + shlex.quote(value) if equals else flag
    if all_commands is None or flag in _command_flags(command):
        return text
    others = [path for path, other in _list_commands(all_commands(), "lm") if flag in _command_flags(other)]
    first = min(others, key=lambda path: path not in _PREFERRED_COMMANDS, default="")
    return f"{first} {text}".strip()


@cache
def _declared_flags() -> dict[str, str]:
    """Return what to type for each setting of a run, by field and by Python keyword."""
    flags = {"from_run": "--from"}
    for section, config in SECTIONS.items():
        for option in list_options(config):
            for name in (option.name, option.setting):
                flags.setdefault(name, f"{SET} {section}.{option.name}" if option.is_advanced else option.flag)
    return flags


def _command_flags(command: Command) -> set[str]:
    return {parameter_name(parameter) for parameter in command.params if parameter.param_type_name == "option"}


def typed_arguments(section: str, option: Option, value: Any) -> list[str]:  # noqa: ANN401
    """Return the arguments that set an option of a run, by its flag or by its key; none for None."""
    if value is None:
        return []
    if option.is_advanced:
        texts = value if option.kind is tuple else [str(value).lower() if option.kind is bool else value]
        return [word for text in texts for word in (SET, f"{section}.{option.name}={text}")]
    if option.kind is bool:
        return [option.flag if value else spell_no(option.flag)]
    if option.kind is tuple:
        return [word for item in value for word in (option.flag, str(item))]
    return [option.flag, str(value)]


def _list_commands(group: Command, path: str) -> Iterator[tuple[str, Command]]:
    """Yield all commands of a group, in order, each with its command line."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from _list_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command
