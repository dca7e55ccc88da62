"""Flags of a command, made from config fields, with their help and environment variables.

A command names the config classes it takes and receives the given values of each.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_click_param
from typer.models import ParamMeta, TyperPath

from cli.flags import shell_completion
from cli.flags.environment import read_environment, variables_of_context
from cli.flags.help import Setting, escape, help_options, summarize
from cli.flags.set_option import build_set_option, expand_settings
from cli.flags.usage import (
    Context,
    Formatter,
    Parameter,
    format_wrong_value,
    parameter_name,
    spell_no,
)
from lm.config.model import ModelConfig
from lm.config.options import Option, check_requirements, list_options
from lm.errors import UsageError

_PATH_METAVARS = ("CORPUS…", "FILE", "[FILE]...", "FILE…", "PATH", "RUN2|FILE")
"""Metavars of texts that name files, or globs of them."""
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}

RunCommand = Callable[[Sequence[str]], int]
"""Runs a command line, less the name of `lm`; returns its exit code."""


class CommandLine(NamedTuple):
    """What was typed after `lm`, how to run another command line in this process, and the start time."""

    arguments: Sequence[str]
    run: RunCommand
    started_at: float
    """Of the command, by `time.monotonic`."""


class ParsedOptions(dict[str, dict[str, Any]]):
    """The options given by flags or environment: {section: {field: value}}.

    `environment` has the parameters set by the environment, with their variables; those made from config fields are
    called `section__field`. The other attributes are those of `CommandLine`.
    """

    def __init__(
        self,
        values: Mapping[str, dict[str, Any]],
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        started_at: float = 0.0,
    ) -> None:
        super().__init__(values)
        self.environment, self.arguments, self.started_at = variables, arguments, started_at

    @property
    def from_flags(self) -> dict[str, dict[str, Any]]:
        """Return the options given by flags: only these can contradict each other or a resumed run."""
        return {section: self._select(section, in_environment=False) for section in self}

    @property
    def from_environment(self) -> dict[str, dict[str, Any]]:
        """Return the options given by the environment."""
        return {section: self._select(section, in_environment=True) for section in self}

    def _select(self, section: str, *, in_environment: bool) -> dict[str, Any]:
        return {
            name: value
            for name, value in self[section].items()
            if (f"{section}__{name}" in self.environment) is in_environment
        }


def with_options(
    sections: Mapping[str, type],
    *,
    leave_out: tuple[str, ...] = (),
    defaults: object = None,
    common: tuple[str, ...] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of some config classes.

    The command needs a keyword `options`; it receives {section: {field: value}} with the fields given by flags or the
    environment. Flags take their name, type, help and default from the field.

    Args:
        sections: name ("model", "training", …) to config class.
        leave_out: fields without a flag.
        defaults: overrides the fields' defaults, as `defaults.section.field`: those of a preset, which decides what is
            on, so that nothing is checked here that requires another setting.
        common: flags of the short help (-h), in order; without any, it is the whole help.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        settings = [
            Setting(section, option, _default_value(option, getattr(defaults, section, None)))
            for section, config in sections.items()
            for option in list_options(config)
            if option.name not in leave_out
        ]
        seen_by_typer = signature.replace(
            parameters=[parameter for parameter in signature.parameters.values() if parameter.name != "options"]
        )
        vars(command).update(
            sections=sections, settings=settings, common=common, has_preset=defaults is not None,
            __signature__=seen_by_typer,
        )  # fmt: skip
        return command

    return decorate


def _default_value(option: Option, config: object) -> Any:  # noqa: ANN401
    if isinstance(config, ModelConfig):
        return config.settings()[option.name]  # of what follows from other settings, the help says from which
    return option.default if config is None else getattr(config, option.name)


def _build_parameter(setting: Setting) -> Parameter:
    """Build a parameter; a choice is plain text, as the option's own check has a better message than Typer's."""
    option = setting.option
    kind: Any = list[str] if option.kind is tuple else option.kind
    declaration = typer.Option(
        None,
        f"{option.flag}/{spell_no(option.flag)}" if option.kind is bool else option.flag,
        help=setting.describe(),
        metavar=None if option.kind is bool else option.unit,
        rich_help_panel=setting.group,
        autocompletion=shell_completion.complete_from(option.choices) if option.choices else None,
        hidden=option.is_advanced,
    )
    parameter: Parameter
    parameter, _ = get_click_param(ParamMeta(name=setting.parameter_name, default=declaration, annotation=kind))
    parameter.setting = setting
    return parameter


class OptionGroupsCommand(TyperCommand):
    """A command whose options are grouped in the help and can be set in the environment.

    The options of the config classes of `with_options` follow its own parameters and are passed as `options`.
    """

    def __init__(self, *args: Any, callback: Callable[..., None], params: Sequence[Any], **options: Any) -> None:  # noqa: ANN401
        self._sections: Mapping[str, type] = getattr(callback, "sections", {})
        self.has_preset: bool = getattr(callback, "has_preset", False)
        self.settings: Sequence[Setting] = getattr(callback, "settings", ())
        self.common: Sequence[str] = getattr(callback, "common", ())
        of_settings = [*map(_build_parameter, self.settings)]
        self._by_key = {parameter.setting.key: parameter for parameter in of_settings}
        parameters = [*params, *of_settings]
        if self.has_advanced_settings:
            parameters.append(build_set_option(shell_completion.complete_settings(self.settings)))
        parameters += help_options(self)
        for parameter in parameters:
            parameter.help = escape(parameter.help)
        super().__init__(*args, callback=callback, params=parameters, **{**options, "rich_markup_mode": "rich"})

    @property
    def has_advanced_settings(self) -> bool:
        """Return whether some settings have no visible flag."""
        return any(setting.option.is_advanced for setting in self.settings)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse a command line, with environment variables for flags that are not given."""
        if not ctx.resilient_parsing:
            ctx.default_map = read_environment(self.params, os.environ)
            args = [*expand_settings(args, self._by_key, ctx)] if self.has_advanced_settings else args
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = variables_of_context(ctx).get(getattr(error.param, "name", None) or "")
            if name is None:
                raise
            raise UsageError(format_wrong_value(name, error.message)) from None
        if not ctx.resilient_parsing:
            self._refuse_empty_paths(ctx)
            if self._sections:
                ctx.params["options"] = self._collect_options(ctx)
        return rest

    def _collect_options(self, ctx: Context) -> ParsedOptions:
        """Collect and validate the values of config fields."""
        variables, command_line = variables_of_context(ctx), ctx.obj or CommandLine((), lambda _: 0, time.monotonic())
        sections: dict[str, dict[str, Any]] = {section: {} for section in self._sections}
        values = {setting.key: setting.option.default for setting in self.settings}
        for setting in self.settings:
            option, value = setting.option, ctx.params.pop(setting.parameter_name)
            if value not in (None, ()):
                option.check(value)
                sections[setting.section][option.name] = values[setting.key] = value
        options = ParsedOptions(sections, variables, command_line.arguments, command_line.started_at)
        if not self.has_preset:  # variables may be meant for other commands
            check_requirements(self._sections, options.from_flags, values)
        return options

    def _refuse_empty_paths(self, ctx: Context) -> None:
        """Raise UsageError for an empty file or folder name, which would mean the current folder."""
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            is_path = isinstance(parameter.type, TyperPath) or getattr(parameter, "metavar", None) in _PATH_METAVARS
            if is_path and (value == "" or (isinstance(value, (list, tuple)) and "" in value)):
                raise UsageError(f"{parameter_name(parameter)} is empty: give a path (unset shell variable?)")

    def format_help(self, ctx: Context, formatter: Formatter) -> None:
        """Write Typer's help, with defaults that do not depend on the environment."""
        ctx.default_map = None
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[Any]:
        """Complete flags, each with the first sentence of its help."""
        items: list[Any] = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = summarize(item.help) if item.help else None
        return items


def set_help(*apps: typer.Typer) -> None:
    """Set the help of the commands of some apps from their docstrings."""
    for app in apps:
        for command in app.registered_commands:
            command.cls = OptionGroupsCommand
            text = inspect.cleandoc(command.callback.__doc__ or "")
            command.help, command.short_help = escape(_unwrap(text)), text.partition("\n")[0]
            has_short_help = bool(getattr(command.callback, "common", ()))
            command.context_settings = {"help_option_names": ["--help"]} if has_short_help else CONTEXT_SETTINGS


def _unwrap(text: str) -> str:
    """Return a text whose paragraphs are lines of any length, except those with indented lines, such as examples."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in paragraphs)
