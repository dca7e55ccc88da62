"""Give a command the settings of config classes: flags for some, `--set` and environment variables for all."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from cli import arguments
from lm.config.settings import Layer, Setting, Values, check_requirements, from_environment, list_all_settings, merge
from lm.errors import UsageError

C = TypeVar("C")
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
_KEY_WIDTH = 37
_COMPLETED = {"RUN": arguments.complete_runs, "PRESET": arguments.complete_presets}
_PREFIX = "setting_"


class CommandLine(NamedTuple):
    """What was typed after `lm`, and the start time."""

    arguments: Sequence[str]
    started_at: float
    """Of the command, by `time.monotonic`."""


@dataclass(frozen=True)
class Options:
    """The settings given to a command by flags, `--set` and the environment.

    Attributes:
        sections: the config class of each section.
        values: {section: {field: value}}.
        typed: those on the command line, without the environment: only these can contradict other options.
    """

    sections: Mapping[str, type]
    values: Values
    typed: Values

    def build(self, config: type[C]) -> C:
        """Return the config of a section."""
        section = next(name for name, kind in self.sections.items() if kind is config)
        return config(**self.values[section])


def spell_flag(name: str) -> str:
    """Return how a keyword or key is typed."""
    return f"--set {name}" if "." in name else "--" + name.replace("_", "-")


def with_settings(
    sections: Mapping[str, type], flags: str, *, common: str = "", merges: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the settings of config classes; it receives them as the keyword `options`, an `Options`.

    Args:
        sections: name ("model", "training", …) to config class.
        flags: keywords of the settings that have a flag of their own, in the order of the help.
        common: flags of the short help (-h), in order; without any, it is the whole help.
        merges: whether the settings are merged and checked here; else `options` are the flags and keys as typed, and
            the command does so, with a file and a preset.
    """
    settings = list_all_settings(sections)
    repeatable = {name for each in settings if each.plain_type is tuple for name in (each.key, each.keyword)}
    by_keyword = {setting.keyword: setting for setting in settings}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def call(**values: Any) -> Any:
            own = {name: value for name, value in values.items() if name in signature.parameters}
            typed = {name: values[_PREFIX + name] for name in flags.split()}
            typed |= _split(values.get("set_"), repeatable)
            given = {name: value for name, value in typed.items() if value not in (None, [])}
            if not merges:
                return command(**own, options=given)
            layers = [from_environment(settings, os.environ), Layer("flag", given, spell_flag)]
            options = Options(sections, merge(sections, layers)[0], merge(sections, layers[1:])[0])
            if stops := options.values.get("sampling", {}).get("stop"):
                options.values["sampling"]["stop"] = tuple(text.replace("\\n", "\n") for text in stops)
            known = {each.key: options.values[each.section].get(each.name, each.default) for each in settings}
            check_requirements(sections, options.typed, known)
            return command(**own, options=options)

        own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
        added = [_flag_parameter(by_keyword[name], shows_default=merges) for name in flags.split()]
        if len(added) < len(settings):
            completed = arguments.complete_settings(settings)
            text = "Any setting (see --help-settings). Repeatable."
            added.append(
                _keyword(
                    "set_",
                    list[str] | None,
                    typer.Option("--set", metavar="KEY=VALUE", help=text, autocompletion=completed),
                )
            )
            added.append(_page("--help-settings", "Show every setting.", lambda _: settings_page(settings)))
        if common:
            added.append(_page("-h", "Show the common options.", lambda context: _short_help(context, common.split())))
        call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        call.has_short_help, call.settings = bool(common), settings  # type: ignore[attr-defined]
        return call

    return decorate


def _keyword(name: str, kind: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _flag_parameter(setting: Setting, *, shows_default: bool) -> Parameter:
    """Return the parameter of a flag; its value stays text, which the setting converts."""
    kind = {tuple: list[str], bool: bool}.get(setting.plain_type, str)
    option = typer.Option(
        setting.flag if kind is not bool or setting.default is False else f"{setting.flag}/--no-{setting.flag[2:]}",
        *(("-o",) if setting.name == "out" else ()),
        help=(setting if shows_default else setting._replace(default=None)).describe(),
        metavar=None if kind is bool else setting.metavar,
        autocompletion=arguments.complete_from(setting.choices) if setting.choices else _COMPLETED.get(setting.metavar),
        show_default=False,
    )
    return _keyword(_PREFIX + setting.keyword, kind | None, option)


def _split(texts: Sequence[str] | None, repeatable: Collection[str]) -> dict[str, Any]:
    """Return the values of `--set KEY=VALUE` by key: all of a repeatable one, of others the last."""
    given: dict[str, list[str]] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set takes KEY=VALUE, not {text!r}")
        given.setdefault(key, []).append(value)
    return {key: values if key in repeatable else values[-1] for key, values in given.items()}


def _page(flag: str, text: str, page: Callable[[typer.Context], str]) -> Parameter:
    """Return the parameter of an option that prints a page and ends the command."""

    def show(context: typer.Context, value: bool) -> None:
        if value and not context.resilient_parsing:
            print(page(context))
            raise typer.Exit

    option = typer.Option(flag, help=text, is_eager=True, callback=show, expose_value=False, show_default=False)
    return _keyword("page" + flag.replace("-", "_"), bool, option)


def settings_page(settings: Sequence[Setting]) -> str:
    """Return a line for each setting, by table."""
    lines, table = ["Settings: --set KEY=VALUE, repeatable; or in a TOML file (--config), in tables."], ""
    for setting in settings:
        if setting.section != table:
            table = setting.section
            lines += ["", f"[{table}]"]
        lines.append(f"  {f'{setting.key}={setting.metavar}':<{_KEY_WIDTH}} {setting.describe()}")
    return "\n".join(lines)


def _short_help(context: typer.Context, common: Sequence[str]) -> str:
    """Return the help with three examples and the common options alone."""
    command: Any = copy.copy(context.command)
    summary, _, rest = command.help.partition("\n")
    examples = rest.partition("Examples:\n")[2].splitlines()[:3]
    command.help = "\n\n\b\n".join((summary, "\n".join(examples)))
    command.params = [each for each in command.params if each.param_type_name == "argument" or {*each.opts} & {*common}]
    command.epilog = f"{context.command_path} --help: all options; --help-settings: every setting, for --set."
    return str(command.get_help(context))


def set_help(*apps: typer.Typer) -> None:
    """Set the help of the commands of some apps from their docstrings; paragraphs with examples keep their lines."""
    for app in apps:
        for command in app.registered_commands:
            text = inspect.cleandoc(command.callback.__doc__ or "")
            command.help = text.replace("Examples:\n", "\b\nExamples:\n")
            command.short_help = text.partition("\n")[0]
            has_page = getattr(command.callback, "has_short_help", False)
            command.context_settings = {"help_option_names": ["--help"]} if has_page else CONTEXT_SETTINGS
