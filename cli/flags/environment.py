"""Options set in the environment: `LM_TEMPERATURE=0.7` is `--temperature 0.7` for every command with that flag."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer

from cli.flags.usage import SET, Command, Parameter, parameter_name

PREFIX = "LM_"
_RESERVED_VARIABLES = frozenset({"LM_CACHE", "LM_SERVE_TOKEN"})
"""Variables read elsewhere; so `--cache` has none."""


def environment_variable(parameter: Parameter) -> str | None:
    """Return the variable of an option; None for an argument, --set, or a reserved name."""
    long = [flag for flag in parameter.opts if flag.startswith("--")]
    if parameter.param_type_name != "option" or parameter.is_eager or not long or SET in long:
        return None
    name = PREFIX + long[0].removeprefix("--").replace("-", "_").upper()
    return None if name in _RESERVED_VARIABLES else name


def replace_options_by_variables(message: str, variables: Mapping[str, str]) -> str:
    """Replace the options at the end of a message by the variables that set them; see `variables_of_command_line`."""
    if not message.endswith(")"):
        return message
    text, _, flags = message.removesuffix(")").rpartition(" (")
    return f"{text} ({', '.join(variables.get(flag, flag) for flag in flags.split(', '))})"


def read_environment(parameters: Iterable[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameter values in the environment: {name: value}, to be validated as flags are.

    An empty variable is ignored. A repeatable option gets one value.
    """
    values: dict[str, Any] = {}
    for parameter in parameters:
        text = environment.get(environment_variable(parameter) or "")
        if text:
            values[parameter.name] = [text] if parameter.multiple else text
    return values


def variables_of_context(context: typer.Context) -> dict[str, str]:
    """Return the parameters of a command set by the environment, with their variables."""
    values, variables = context.default_map or {}, {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        name = environment_variable(parameter)
        if name and parameter.name in values and source is not None and source.name == "DEFAULT_MAP":
            variables[str(parameter.name)] = name
    return variables


def variables_of_command_line(command: Command, arguments: Sequence[str]) -> dict[str, str]:
    """Return the variables that set options of a command which are not typed, by the name of the option."""
    typed = {part for argument in arguments for part in argument.split("=")}
    variables = {}
    for option in command.params:
        variable = environment_variable(option)
        names = {*option.opts, *option.secondary_opts, *([option.setting.key] if hasattr(option, "setting") else [])}
        if variable and os.environ.get(variable) and not typed & names:
            variables[parameter_name(option)] = variable
    return variables
