"""A command line as it is parsed: the class of every command, its help, and options from the environment.

Help is plain text in groups, which reads well at any width and in a pipe. `LM_TEMPERATURE=0.7` in the environment is
`--temperature 0.7` for every command that has this flag.
"""

from __future__ import annotations

import difflib
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.models import TyperPath

from cli.flags.usage import name_of, wrong_value
from cli.flags.without_effect import Invocation, refuse
from lm.errors import UsageError

PREFIX = "LM_"
_TAKEN = frozenset({"LM_CACHE"})
"""Read elsewhere: the folder of what is kept between runs. `--cache` of a command has no variable."""
_NEARLY = 0.85
_SHORT = 70
_NAMES_OF_FILES = ("CORPUS…", "FILE", "[FILE]...", "FILE…", "PATH", "RUN2|FILE")
"""Metavars of texts that name files, or globs of them."""
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Run = Callable[[Sequence[str]], int]
"""Runs a command line, less the name of `lm`; returns its exit code."""


class CommandLine(NamedTuple):
    """What was typed.

    Attributes:
        arguments: the command line, less the name of `lm`.
        run: runs another one in this process.
        began: when the command began, on the clock of `time.monotonic`.
    """

    arguments: Sequence[str]
    run: Run
    began: float


class GroupedCommand(TyperCommand):
    """A command whose flags are listed under the name of their panel, and can be set in the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (click's types, which typer keeps to itself)
        """Parse a command line, with the environment in place of flags that are not given.

        Raises:
            UsageError: a variable has a wrong value, or an option was typed that has no effect beside the others.
        """
        if not ctx.resilient_parsing:
            ctx.default_map = from_environment(self.params, os.environ)
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = set_variables(ctx).get(getattr(error.param, "name", None) or "")
            if name is None:
                raise
            raise UsageError(wrong_value(name, error.message)) from None
        if not ctx.resilient_parsing:
            self._refuse_empty_names(ctx)
            refuse(invocation_of(ctx), "arguments")
        return rest

    def _refuse_empty_names(self, ctx: Any) -> None:  # noqa: ANN401
        """Raise UsageError for an empty name of a file or folder, which would stand for the current folder."""
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            is_path = isinstance(parameter.type, TyperPath) or parameter.metavar in _NAMES_OF_FILES
            if is_path and (value == "" or (isinstance(value, (list, tuple)) and "" in value)):
                raise UsageError(f"{name_of(parameter)} is an empty name; give a path (is a variable unset?)")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401
        """What the shell offers, each flag with the first sentence of its help."""
        items: list[Any] = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = _in_short(item.help) if item.help else None
        return items

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the help, which does not depend on the environment."""
        ctx.default_map = None
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write each group of parameters as a section."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _in_short(text: str) -> str:
    """The first sentence, cut to the length of a line; brackets are escaped, which typer takes for markup."""
    sentence = text.partition(" [default")[0].partition(". ")[0].rstrip(".")
    return textwrap.shorten(sentence, _SHORT, placeholder=" …").replace("[", "\\[")


def describe(*apps: typer.Typer) -> None:
    """Give the commands of some apps their help, from their docstrings."""
    for app in apps:
        for command in app.registered_commands:
            command.cls = GroupedCommand
            text = inspect.cleandoc(command.callback.__doc__ or "")
            command.help, command.short_help = _as_it_stands(text), text.partition("\n")[0]
            command.context_settings = CONTEXT_SETTINGS


def _as_it_stands(text: str) -> str:
    """Mark paragraphs with indented lines, which click's formatter would otherwise run together."""
    marked = ["\b\n" + paragraph if "\n " in paragraph else paragraph for paragraph in text.split("\n\n")]
    return "\n\n".join(marked)


def invocation_of(context: typer.Context) -> Invocation:
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
    used = set_variables(context)
    variables = {_key(parameter): used[str(parameter.name)] for parameter in context.command.params
                 if parameter.name in used}  # fmt: skip
    return Invocation(context.command_path.partition(" ")[2], values, typed, variables)


def _key(parameter: Any) -> str:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """The name of an argument, or the long flag of an option."""
    return str(parameter.name if parameter.param_type_name == "argument" else max(parameter.opts, key=len))


def _spelled(parameter: Any, value: Any) -> str:  # noqa: ANN401
    """An option or argument as messages name it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]….")
    return str(parameter.secondary_opts[0] if value is False and parameter.secondary_opts else _key(parameter))


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


def from_environment(parameters: Iterable[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values that the environment gives parameters: {name: value}, to be converted and checked as flags are.

    An empty variable is none. An option that can be repeated gets one value.
    """
    found: dict[str, Any] = {}
    for parameter in parameters:
        text = environment.get(variable(parameter) or "")
        if text:
            found[parameter.name] = [text] if parameter.multiple else text
    return found


def set_variables(context: typer.Context) -> dict[str, str]:
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
