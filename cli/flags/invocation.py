"""What a command was called with: the values of its options, and which of them were typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from cli.flags import environment


@dataclass(frozen=True)
class Invocation:
    """The options and arguments of a command as they were parsed.

    Attributes:
        command: its name, such as "train" or "tokenizer train".
        values: of options and arguments: from the command line, the environment, or by default; by flag, or by the
            name of an argument.
        typed: those that were typed, as they are spelled, such as --no-echo for --echo.
        variables: those that the environment set, with their variables.
    """

    command: str
    values: Mapping[str, Any]
    typed: Mapping[str, str]
    variables: Mapping[str, str]

    @classmethod
    def of(cls, context: typer.Context) -> Invocation:
        """The options and arguments in a parsed context."""
        values: dict[str, Any] = {}
        typed: dict[str, str] = {}
        for parameter in context.command.params:
            key, value = _key(parameter), context.params.get(parameter.name or "")
            values[key] = value
            source = context.get_parameter_source(parameter.name or "")
            is_typed = source is not None and source.name == "COMMANDLINE"
            # a switch that is turned to where it stands by default asks for nothing
            if is_typed and not (isinstance(value, bool) and value is bool(parameter.default)):
                typed[key] = _spelled(parameter, value)
        used = environment.used(context)
        variables = {_key(parameter): used[str(parameter.name)] for parameter in context.command.params
                     if parameter.name in used}  # fmt: skip
        return cls(context.command_path.partition(" ")[2], values, typed, variables)


def _key(parameter: Any) -> str:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """The name of an argument, or the long flag of an option."""
    return str(parameter.name if parameter.param_type_name == "argument" else max(parameter.opts, key=len))


def _spelled(parameter: Any, value: Any) -> str:  # noqa: ANN401
    """An option or argument as messages name it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]….")
    return str(parameter.secondary_opts[0] if value is False and parameter.secondary_opts else _key(parameter))
