"""Help of commands: the short `-h`, all options (`--help`), one group of them, and the settings without a flag.

Plain text, which does not depend on the environment. An option has its term on the left, such as `--seed N`, and
description, choices and default on the right. Options of config fields are described by their fields.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from typer.core import TyperOption
from typer.main import get_param_completion

from cli.flags.usage import SET, Command, Context, Formatter, Parameter, Parser, long_flag, spell_no
from lm.config.options import Option, find_nearest
from lm.errors import UsageError

COMMON = "Common options"
OPTIONS = "Options"
ARGUMENTS = "Arguments"
SHORT_HELP_LINES = 40
"""Lines of a screen: of -h, and of --help where a command has no other."""
_TERM_WIDTH, _SETTING_WIDTH, _GAP = 22, 30, 2
_NO_BREAK = "\0"
_EXAMPLES = "Examples:"
_SHOWN_EXAMPLES = 3
_SUMMARY_LENGTH = 70
_TITLES = {
    "files": "Data",
    "parallel": "Translation",
    "lora": "LoRA",
    "distribution": "Hardware",
    "workers": "Hardware",
    "sampling": "Sampling",
    "beam": "Beam search",
}
"""Titles of sections that are not called as their section is."""


class Setting(NamedTuple):
    """An option of a config class in a command."""

    section: str
    """The table of the field, such as "model"."""
    option: Option
    default: Any
    """In this command."""

    @property
    def parameter_name(self) -> str:
        return f"{self.section}__{self.option.name}"

    @property
    def key(self) -> str:
        """Return its key, such as "model.d_model"."""
        return f"{self.section}.{self.option.name}"

    @property
    def group(self) -> str:
        """Return the title of its group of help."""
        return self.option.group or _TITLES.get(self.section, self.section.capitalize())

    def describe(self, *, yes: str = "yes") -> str:
        """Return one line: what it is, its choices and its default; `yes` is the word for a switch that is on."""
        option, parts = self.option, [self.option.help]
        if option.choices:
            parts.append(f"[{'|'.join(option.choices)}]")
        if option.kind is tuple:
            parts.append("Repeatable.")
        if default := _format_default(self.default, option.default_text, yes):
            parts.append(f"[default: {default}]")
        return " ".join(parts)


def _format_default(value: Any, text: str | None, yes: str) -> str | None:  # noqa: ANN401
    """Return a default for help; None for one that goes without saying."""
    if value is None or value is False or value == ():
        return text
    if value is True:
        return yes
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{shown} ({text})" if value == 0 and text else shown


class HelpOption(TyperOption):
    """`-h` and `--help`: the short help, and the whole."""

    def __init__(self, command: Command) -> None:
        super().__init__(
            param_decls=["-h", "--help"],
            is_flag=True,
            type=str,
            default=None,
            expose_value=False,
            is_eager=True,
            help="-h: common options; --help: all options." if command.common else "Show this help.",
            callback=_print_help,
        )

    def add_to_parser(self, parser: Parser, ctx: Context) -> None:  # noqa: ARG002
        """Register both flags with a parser, each with its own value."""
        for flag in self.opts:
            parser.add_option(obj=self, opts=[flag], dest=self.name, action="store_const", const=flag)


def help_options(command: Command) -> list[TyperOption]:
    """Return the options of a command that print help."""
    options: list[TyperOption] = [HelpOption(command)]
    if command.common:
        options.append(
            TyperOption(
                param_decls=["--help-group"],
                metavar="NAME",
                help="Show the options of one group.",
                expose_value=False,
                is_eager=True,
                callback=_print_group,
                autocompletion=get_param_completion(
                    lambda incomplete: [name for name in group_names(command) if name.startswith(incomplete)]
                ),
            )
        )
    if command.has_advanced_settings:
        options.append(
            TyperOption(
                param_decls=["--help-settings"],
                is_flag=True,
                help="Show every setting, for --set.",
                expose_value=False,
                is_eager=True,
                callback=_print_settings,
            )
        )
    return options


def _print_help(context: Context, _: Parameter, value: str | None) -> None:
    if value:
        _print_page(context, write_short_help if value == "-h" else write_help)


def _print_group(context: Context, _: Parameter, value: str | None) -> None:
    if value is not None:
        _print_page(context, lambda command, _, formatter: write_group_help(command, formatter, value))


def _print_settings(context: Context, _: Parameter, value: bool | None) -> None:
    if value:
        _print_page(context, lambda command, _, formatter: write_settings_help(command, formatter))


def _print_page(context: Context, write: Callable[[Command, Context, Formatter], None]) -> None:
    """Print help and end the command, unless the shell asks for completions."""
    if not context.resilient_parsing:
        formatter = context.make_formatter()
        write(context.command, context, formatter)
        print(formatter.getvalue().strip("\n"))
        context.exit()


def write_help(command: Command, context: Context, formatter: Formatter) -> None:
    """Write all visible options in groups, common ones first."""
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    groups = group_parameters(command)
    for title, parameters in groups.items():
        _write_group(formatter, title, parameters)
    if COMMON in groups:
        _write_footer(command, context, formatter, groups, is_short=False)


def write_short_help(command: Command, context: Context, formatter: Formatter) -> None:
    """Write a summary, some examples, the common options, and where the others are."""
    groups = group_parameters(command)
    if COMMON not in groups:
        write_help(command, context, formatter)
        return
    command.format_usage(context, formatter)
    summary, _, rest = (command.help or "").partition("\n")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(summary)
    _, has_examples, examples = rest.partition(_EXAMPLES + "\n")
    if has_examples:
        formatter.write_paragraph()
        for line in examples.splitlines()[:_SHOWN_EXAMPLES]:
            formatter.write(f"  {line}\n")
    for title in (ARGUMENTS, COMMON):
        _write_group(formatter, title, groups.get(title, ()))
    _write_footer(command, context, formatter, groups, is_short=True)


def write_group_help(command: Command, formatter: Formatter, name: str) -> None:
    """Write the options of one group, common ones first, and its settings that have no visible flag."""
    groups = group_parameters(command)
    titles = {group_name(title): title for title in groups if title != ARGUMENTS}
    if name.lower() not in titles:
        near = find_nearest(name.lower(), titles)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise UsageError(f"no group {name!r}{hint}; groups: {', '.join(titles)}")
    title = titles[name.lower()]
    also_common = [setting for setting in groups.get(COMMON, ()) if title != COMMON and _panel(setting) == title]
    _write_group(formatter, title, [*also_common, *groups[title]])
    advanced = [setting for setting in command.settings if setting.option.is_advanced and setting.group == title]
    if advanced:
        with formatter.section(f"{title} settings, each {SET} KEY=VALUE"):
            write_rows(formatter, [_setting_record(setting) for setting in advanced], _SETTING_WIDTH)


def write_settings_help(command: Command, formatter: Formatter) -> None:
    """Write every setting: its key, type, choices and default."""
    formatter.write_text(
        f"Settings: {SET} KEY=VALUE, repeatable, wins like a flag. A TOML file (--config) and config.json have the "
        "same keys, in tables."
    )
    for section in dict.fromkeys(setting.section for setting in command.settings):
        records = [_setting_record(setting) for setting in command.settings if setting.section == section]
        formatter.write(f"\n[{section}]\n")
        with formatter.indentation():
            write_rows(formatter, records, _SETTING_WIDTH)


def group_name(title: str) -> str:
    """Return the name of a group for `--help-group`: the first word of its title."""
    return title.partition(" ")[0].lower()


def group_names(command: Command) -> list[str]:
    return [group_name(title) for title in group_parameters(command) if title != ARGUMENTS]


def group_parameters(command: Command) -> dict[str, list[Parameter]]:
    """Return the visible parameters of a command by group: arguments, common ones, then the others."""
    order: list[str] = [ARGUMENTS, COMMON, OPTIONS, *command.groups]
    groups: dict[str, list[Parameter]] = {title: [] for title in order}
    for parameter in command.params:
        if not parameter.hidden and (not parameter.is_eager or isinstance(parameter, HelpOption)):
            groups.setdefault(_group_of(parameter, command), []).append(parameter)
    common = list(command.common)
    groups[COMMON].sort(
        key=lambda parameter: common.index(long_flag(parameter)) if long_flag(parameter) in common else len(common)
    )
    return {title: parameters for title, parameters in groups.items() if parameters}


def _group_of(parameter: Parameter, command: Command) -> str:
    if parameter.param_type_name == "argument":
        return ARGUMENTS
    if command.common and (long_flag(parameter) in command.common or parameter.is_eager):
        return COMMON
    return _panel(parameter)


def _panel(parameter: Parameter) -> str:
    """Return the group that a parameter has where it is not a common one."""
    return getattr(parameter, "rich_help_panel", None) or OPTIONS


def _write_group(formatter: Formatter, title: str, parameters: Sequence[Parameter]) -> None:
    if parameters:
        with formatter.section(title):
            write_rows(
                formatter, [(format_term(parameter), describe(parameter)) for parameter in parameters], _TERM_WIDTH
            )


def write_rows(formatter: Formatter, rows: Sequence[tuple[str, str]], limit: int) -> None:
    """Write two columns; flags, choices and defaults are not broken where a line has room for them.

    Terms longer than `limit` have a line of their own.
    """
    limit = min(limit, max(len(term) for term, _ in rows), formatter.width // 2 - _GAP)
    indent, column = " " * formatter.current_indent, formatter.current_indent + limit + _GAP
    for term, text in rows:
        lines = _wrap(text, formatter.width - column)
        if len(term) <= limit:
            formatter.write(f"{indent}{term:<{limit + _GAP}}{lines[0]}".rstrip() + "\n")
            lines = lines[1:]
        else:
            formatter.write(f"{indent}{term}\n")
        formatter.write("".join(f"{' ' * column}{line}\n" for line in lines))


def _wrap(text: str, width: int) -> list[str]:
    """Wrap a text into lines, breaking at spaces outside of brackets if possible, and never at hyphens."""
    joined = re.sub(
        r"\[[^]]*\]",
        lambda match: match[0].replace(" ", _NO_BREAK) if len(match[0]) <= width else match[0].replace("|", "| "),
        text,
    )
    lines = textwrap.wrap(joined, width, break_on_hyphens=False) or [""]
    return [line.replace(_NO_BREAK, " ").replace("| ", "|") for line in lines]


def _write_footer(
    command: Command, context: Context, formatter: Formatter, groups: Iterable[str], *, is_short: bool
) -> None:
    path, names = context.command_path, [group_name(title) for title in groups if title not in (ARGUMENTS, COMMON)]
    lines = [f"{path} --help: all options, and details."] if is_short else []
    if names:
        lines.append(f"{path} --help-group NAME: the options of one group: {', '.join(names)}.")
    if command.has_advanced_settings:
        lines.append(f"{path} --help-settings: every setting, for {SET}.")
    if lines:
        formatter.write_paragraph()
    for line in lines:
        formatter.write_text(line)


def _setting_record(setting: Setting) -> tuple[str, str]:
    return f"{setting.key}={setting.option.unit}", setting.describe(yes="true")


def format_term(parameter: Parameter) -> str:
    """Return the left column: `-o, --out FOLDER`, `--[no-]compile`, or the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    short = [flag for flag in parameter.opts if not flag.startswith("--")]
    shown = long_flag(parameter)
    if parameter.secondary_opts and spell_no(shown) == parameter.secondary_opts[0]:
        shown = f"--[no-]{shown[2:]}"
    term = ", ".join([*short, *([shown] if shown not in short else [])])
    return term if parameter.is_flag else f"{term} {parameter.metavar or 'TEXT'}"


def describe(parameter: Parameter) -> str:
    """Return the right column: the help, with its default."""
    text = parameter.help or ""
    if isinstance(parameter, TyperOption) and parameter.show_default and parameter.default not in (None, False, ()):
        text = f"{text} [default: {parameter.default}]"
    return text


def summarize(text: str) -> str:
    """Return the first sentence, shortened to a line, with brackets escaped for Typer's markup."""
    sentence = text.partition(" [default")[0].partition(". ")[0].rstrip(".")
    return textwrap.shorten(sentence, _SUMMARY_LENGTH, placeholder=" …").replace("[", "\\[")
