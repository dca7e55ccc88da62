"""Options from the environment: `LM_TEMPERATURE=0.7` is `--temperature 0.7` for every command that has this flag."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer

PREFIX = "LM_"
_TAKEN = frozenset({"LM_CACHE"})
"""Read elsewhere: the folder of what is kept between runs. `--cache` of a command has no variable."""
_NEARLY = 0.85


def variable(parameter: Any) -> str | None:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """The variable of an option; None for an argument, or where the name means something else."""
    long = [flag for flag in parameter.opts if flag.startswith("--")]
    if parameter.param_type_name != "option" or parameter.is_eager or not long:
        return None
    name = variable_of(long[0])
    return None if name in _TAKEN else name


def variable_of(flag: str) -> str:
    """`LM_MAX_TOKENS` of `--max-tokens`."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def in_message(message: str, variables: Iterable[str]) -> str:
    """A message that names a variable where it would name the flag that the variable stands for."""
    for name in variables:
        flag = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
        message = message.replace(f"({flag})", f"({name})")
    return message


def values(parameters: Iterable[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values that the environment gives parameters: {name: value}, to be converted and checked as flags are.

    An empty variable is none. An option that can be repeated gets one value.
    """
    found: dict[str, Any] = {}
    for parameter in parameters:
        text = environment.get(variable(parameter) or "")
        if text:
            found[parameter.name] = [text] if parameter.multiple else text
    return found


def used(context: typer.Context) -> dict[str, str]:
    """The parameters of a command that the environment set, each with its variable."""
    given = context.default_map or {}
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        name = variable(parameter)
        if name and parameter.name in given and source is not None and source.name == "DEFAULT_MAP":
            found[str(parameter.name)] = name
    return found


def set_by_environment(command: Any, arguments: Sequence[str]) -> list[str]:  # noqa: ANN401
    """The variables that set options of a command which are not typed."""
    typed = {argument.partition("=")[0] for argument in arguments}
    options = [one for one in command.params if not typed & {*one.opts, *one.secondary_opts}]
    return [name for name in map(variable, options) if name and os.environ.get(name)]


def options_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are there for options, whether a command knows them or not."""
    return {name: text for name, text in environment.items() if name.startswith(PREFIX) and name not in _TAKEN}


def misspelled(environment: Mapping[str, str], command: Any) -> Iterator[str]:  # noqa: ANN401
    """A line for each variable that no command knows but that is nearly one; others may belong to another program."""
    known = {name.removeprefix(PREFIX) for name in _TAKEN | set(_variables(command))}
    for name in sorted(environment):
        word = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and word not in known:
            for near in difflib.get_close_matches(word, known, n=1, cutoff=_NEARLY):
                yield f"{name} is set, but no command reads it (did you mean {PREFIX}{near}?)"


def _variables(command: Any) -> Iterator[str]:  # noqa: ANN401
    for below in getattr(command, "commands", {}).values():
        yield from _variables(below)
    yield from filter(None, map(variable, command.params))
