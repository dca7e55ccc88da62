"""Flags of a command, made from config fields: typed, or set in the environment, and described in its help.

A command names the config classes it takes and receives the given values of each. `LM_TEMPERATURE=0.7` in the
environment is `--temperature 0.7` for every command with that flag. Help is plain text in groups, for any width.
"""

from __future__ import annotations

import difflib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_click_param
from typer.models import ParamMeta, TyperPath

from cli.flags import completion, ineffective_options
from cli.flags.help import Setting, format_term, help_options, summarize, write_help
from cli.flags.ineffective_options import Invocation, Stage
from cli.flags.set_option import SetOption
from cli.flags.usage import (
    SET,
    Parameter,
    format_wrong_value,
    is_set_by_key,
    long_flag,
    parameter_name,
    spell,
    spell_no,
)
from lm.config import options
from lm.config.model import ModelConfig
from lm.config.options import Option
from lm.errors import UsageError

PREFIX = "LM_"
_RESERVED_VARIABLES = frozenset({"LM_BACKGROUND_COMPILE", "LM_CACHE", "LM_SERVE_TOKEN"})
"""Variables read elsewhere; so `--cache` has none."""
_SIMILARITY = 0.85
_NAMES_OF_FILES = ("CORPUS…", "FILE", "[FILE]...", "FILE…", "PATH", "RUN2|FILE")
"""Metavars of texts that name files, or globs of them."""
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Run = Callable[[Sequence[str]], int]
"""Runs a command line, less the name of `lm`; returns its exit code."""


class CommandLine(NamedTuple):
    """What was typed.

    Attributes:
        arguments: the command line without `lm`.
        run: runs another command line in this process.
        began: start time of the command (`time.monotonic`).
    """

    arguments: Sequence[str]
    run: Run
    began: float


class ParsedOptions(dict[str, dict[str, Any]]):
    """The options given by flags or environment: {section: {field: value}}.

    Attributes:
        environment: parameters set by the environment, with their variables; those made from config fields are called
            `section__field`.
        arguments: the whole command line.
        invocation: the parsed options and arguments.
        began: start time of the command (`time.monotonic`).
    """

    def __init__(
        self,
        values: Mapping[str, dict[str, Any]],
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        invocation: Invocation | None = None,
        began: float = 0.0,
    ) -> None:
        super().__init__(values)
        self.environment, self.arguments, self.invocation = variables, arguments, invocation
        self.began = began

    def refuse_ineffective(self, stage: Stage, **known: Any) -> None:  # noqa: ANN401 (fields of `CommandMode`)
        """Raise UsageError if a typed option has no effect, as far as is known at this stage."""
        if self.invocation is not None:
            ineffective_options.refuse_ineffective(self.invocation, stage, **known)

    @property
    def typed(self) -> dict[str, dict[str, Any]]:
        """Return the options given by flags: only these can contradict each other or a resumed run."""
        return {section: self._of(section, from_environment=False) for section in self}

    @property
    def environment_values(self) -> dict[str, dict[str, Any]]:
        """Return the options given by the environment."""
        return {section: self._of(section, from_environment=True) for section in self}

    def _of(self, section: str, *, from_environment: bool) -> dict[str, Any]:
        return {
            name: value
            for name, value in self[section].items()
            if (f"{section}__{name}" in self.environment) is from_environment
        }


def with_options(
    panels: Mapping[str, type],
    *,
    leave_out: tuple[str, ...] = (),
    defaults: object = None,
    common: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of some config classes.

    The command needs a keyword `given`; it receives {section: {field: value}} with the fields given by flags or the
    environment. Flags take their name, type, help and default from the field.

    Args:
        panels: section ("model", "training", …) to config class.
        leave_out: fields without a flag.
        defaults: overrides the fields' defaults, as `defaults.section.field`.
        common: flags of the short help (-h), in order; without any, it is the whole help.
        groups: titles of groups of help, in order; others follow.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        settings = [
            Setting(section, described, _default_value(described, getattr(defaults, section, None)))
            for section, config in panels.items()
            for described in options.list_options(config)
            if described.name not in leave_out
        ]
        seen_by_typer = own.replace(parameters=[one for one in own.parameters.values() if one.name != "given"])
        vars(command).update(
            sections=tuple(panels), settings=settings, common=common, groups=groups, __signature__=seen_by_typer
        )
        return command

    return decorate


def _default_value(described: Option, config: object) -> Any:  # noqa: ANN401
    if isinstance(config, ModelConfig):
        return config.settings()[described.name]  # of what follows from other settings, the help says from which
    return described.default if config is None else getattr(config, described.name)


def _build_parameter(setting: Setting) -> Parameter:
    """Build a parameter; a choice is plain text, as the option's own check has a better message than Typer's."""
    described = setting.described
    kind: Any = list[str] if described.kind is tuple else described.kind
    option = typer.Option(
        None,
        f"{described.flag}/{spell_no(described.flag)}" if described.kind is bool else described.flag,
        *described.aliases,
        help=setting.describe(),
        metavar=None if described.kind is bool else described.unit,
        rich_help_panel=setting.group,
        show_default=False,
        autocompletion=completion.complete_from(described.choices) if described.choices else None,
        hidden=described.is_advanced,
    )
    parameter: Any
    parameter, _ = get_click_param(ParamMeta(name=setting.parameter_name, default=option, annotation=kind))
    parameter.setting = setting
    return parameter


class GroupedCommand(TyperCommand):
    """A command whose options are grouped in the help and can be set in the environment.

    The options of the config classes of `with_options` follow its own parameters and are passed as `given`.

    Attributes:
        settings: the options of config classes.
        common: flags of the short help.
        groups: titles of the first groups of help.
    """

    def __init__(self, *args: Any, callback: Callable[..., None], params: Sequence[Any], **settings: Any) -> None:  # noqa: ANN401
        self._sections: Sequence[str] = getattr(callback, "sections", ())
        self.settings: Sequence[Setting] = getattr(callback, "settings", ())
        self.common: Sequence[str] = getattr(callback, "common", ())
        self.groups: Sequence[str] = getattr(callback, "groups", ())
        parameters = [*params, *map(_build_parameter, self.settings)]
        if self.has_advanced_settings:
            by_key = {each.setting.key: each for each in parameters if hasattr(each, "setting")}
            parameters.append(SetOption(by_key, completion.complete_settings(self.settings)))
        parameters += help_options(self)
        super().__init__(*args, callback=callback, params=parameters, **settings)

    @property
    def has_advanced_settings(self) -> bool:
        """Return whether some settings have no visible flag."""
        return any(each.described.is_advanced for each in self.settings)

    def get_help_option(self, ctx: Any) -> None:  # noqa: ANN401 (click's types, which typer keeps to itself)
        """Return nothing: the options of help are among the parameters."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return what follows the name of the command in the usage line."""
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        names = [(each, format_term(each)) for each in arguments]
        return ["[OPTIONS]", *(name if each.required or name[0] == "[" else f"[{name}]" for each, name in names)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse a command line, with environment variables for flags that are not given.

        Raises:
            UsageError: a variable has a wrong value, or a typed option has no effect.
        """
        if not ctx.resilient_parsing:
            ctx.default_map = read_environment(self.params, os.environ)
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = find_set_variables(ctx).get(getattr(error.param, "name", None) or "")
            if name is None:
                raise
            raise UsageError(format_wrong_value(name, error.message)) from None
        if not ctx.resilient_parsing:
            self._refuse_empty_names(ctx)
            invocation = build_invocation(ctx)
            ineffective_options.refuse_ineffective(invocation, "arguments")
            if self._sections:
                ctx.params["given"] = self._given(ctx, invocation)
        return rest

    def _given(self, ctx: Any, invocation: Invocation) -> ParsedOptions:  # noqa: ANN401
        """Collect and validate the values of config fields."""
        variables, command_line = find_set_variables(ctx), ctx.obj or CommandLine((), lambda _: 0, time.monotonic())
        sections: dict[str, dict[str, Any]] = {section: {} for section in self._sections}
        for setting in self.settings:
            described, value = setting.described, ctx.params.pop(setting.parameter_name)
            if value not in (None, ()):
                described.check(value)
                sections[setting.section][described.name] = value
        return ParsedOptions(sections, variables, command_line.arguments, invocation, command_line.began)

    def _refuse_empty_names(self, ctx: Any) -> None:  # noqa: ANN401
        """Raise UsageError for an empty file or folder name, which would mean the current folder."""
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            is_path = isinstance(parameter.type, TyperPath) or getattr(parameter, "metavar", None) in _NAMES_OF_FILES
            if is_path and (value == "" or (isinstance(value, (list, tuple)) and "" in value)):
                raise UsageError(f"{parameter_name(parameter)} is an empty name; give a path (is a variable unset?)")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401
        """Complete flags, each with the first sentence of its help."""
        items: list[Any] = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = summarize(item.help) if item.help else None
        return items

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the whole help."""
        write_help(self, ctx, formatter)


def set_help(*apps: typer.Typer) -> None:
    """Set the help of the commands of some apps from their docstrings."""
    for app in apps:
        for command in app.registered_commands:
            command.cls = GroupedCommand
            text = inspect.cleandoc(command.callback.__doc__ or "")
            command.help, command.short_help = _keep_line_breaks(text), text.partition("\n")[0]
            command.context_settings = CONTEXT_SETTINGS


def _keep_line_breaks(text: str) -> str:
    """Mark paragraphs with indented lines, so that click does not wrap them."""
    marked = ["\b\n" + paragraph if "\n " in paragraph else paragraph for paragraph in text.split("\n\n")]
    return "\n\n".join(marked)


def build_invocation(context: typer.Context) -> Invocation:
    """Return the options and arguments of a parsed context."""
    values: dict[str, Any] = {}
    typed: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for parameter in context.command.params:
        key, value = _argument_or_flag(parameter), context.params.get(parameter.name or "")
        values[key] = value
        source = context.get_parameter_source(parameter.name or "")
        is_typed = source is not None and source.name == "COMMANDLINE"
        # a switch that is turned to where it stands by default asks for nothing
        if is_typed and not (isinstance(value, bool) and value is bool(parameter.default)):
            typed[key] = _format_parameter(parameter, value)
        if is_set_by_key(parameter):
            spelled[key] = parameter_name(parameter)
    used = find_set_variables(context)
    variables = {_argument_or_flag(parameter): used[str(parameter.name)] for parameter in context.command.params
                 if parameter.name in used}  # fmt: skip
    return Invocation(context.command_path.partition(" ")[2], values, typed, variables, spelled)


def _argument_or_flag(parameter: Any) -> str:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """Return the name of an argument, or the long flag of an option."""
    return str(parameter.name if parameter.param_type_name == "argument" else long_flag(parameter))


def _format_parameter(parameter: Any, value: Any) -> str:  # noqa: ANN401
    """Return an option or argument for messages."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]….")
    return spell(parameter, value=value)


def variable_of_parameter(parameter: Any) -> str | None:  # noqa: ANN401 (click's types, which typer keeps to itself)
    """Return the variable of an option; None for an argument, --set, or a reserved name."""
    long = [flag for flag in parameter.opts if flag.startswith("--")]
    if parameter.param_type_name != "option" or parameter.is_eager or not long or SET in long:
        return None
    name = variable_of(long[0])
    return None if name in _RESERVED_VARIABLES else name


def variable_of(flag: str) -> str:
    """Return the variable of a flag, such as `LM_MAX_TOKENS` of `--max-tokens`."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def name_variables(message: str, variables: Mapping[str, str]) -> str:
    """Replace options in a message by the variables that set them, see `set_by_environment`."""
    for name, variable in variables.items():
        message = message.replace(f"({name})", f"({variable})")
    return message


def read_environment(parameters: Iterable[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameter values in the environment: {name: value}, to be validated as flags are.

    An empty variable is ignored. A repeatable option gets one value.
    """
    found: dict[str, Any] = {}
    for parameter in parameters:
        text = environment.get(variable_of_parameter(parameter) or "")
        if text:
            found[parameter.name] = [text] if parameter.multiple else text
    return found


def find_set_variables(context: typer.Context) -> dict[str, str]:
    """Return the parameters of a command set by the environment, with their variables."""
    given = context.default_map or {}
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        name = variable_of_parameter(parameter)
        if name and parameter.name in given and source is not None and source.name == "DEFAULT_MAP":
            found[str(parameter.name)] = name
    return found


def set_by_environment(command: Any, arguments: Sequence[str]) -> dict[str, str]:  # noqa: ANN401
    """Return the variables that set options of a command which are not typed, by the name of the option."""
    typed = {part for argument in arguments for part in argument.split("=")}
    found = {}
    for option in command.params:
        variable = variable_of_parameter(option)
        names = {*option.opts, *option.secondary_opts, *([option.setting.key] if hasattr(option, "setting") else [])}
        if variable and os.environ.get(variable) and not typed & names:
            found[parameter_name(option)] = variable
    return found


def find_option_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the `LM_` variables that are not reserved."""
    return {
        name: text for name, text in environment.items() if name.startswith(PREFIX) and name not in _RESERVED_VARIABLES
    }


def find_misspelled_variables(environment: Mapping[str, str], command: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield a warning for each variable that closely resembles an option's."""
    known = {name.removeprefix(PREFIX) for name in _RESERVED_VARIABLES | set(_list_variables(command))}
    for name in sorted(environment):
        word = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and word not in known:
            for near in difflib.get_close_matches(word, known, n=1, cutoff=_SIMILARITY):
                yield f"{name} is set, but no command reads it (did you mean {PREFIX}{near}?)"


def _list_variables(command: Any) -> Iterator[str]:  # noqa: ANN401
    for below in getattr(command, "commands", {}).values():
        yield from _list_variables(below)
    yield from filter(None, map(variable_of_parameter, command.params))
