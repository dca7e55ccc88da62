"""The short help (`-h`) and the list of settings (`--help-settings`); `--help` is Typer's own.

Plain text of two columns: a term such as `--seed N`, and one line with description, choices and default.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import typer
from typer.core import TyperOption

from cli.flags.usage import SET, Command, Context, Parameter, long_flag
from lm.config.options import Option

SHORT_HELP_LINES, SHORT_HELP_COLUMNS = 40, 80
_TERM_WIDTH, _SETTING_WIDTH = 22, 40
_SHOWN_EXAMPLES = 3
_TITLES = {
    "files": "Data",
    "parallel": "Translation",
    "lora": "LoRA",
    "distribution": "Hardware",
    "workers": "Hardware",
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

    def describe(self) -> str:
        """Return one line: what it is, its choices, its default and what it requires."""
        option, parts = self.option, [self.option.help]
        if option.choices:
            parts.append(f"[{'|'.join(option.choices)}]")
        if option.kind is tuple:
            parts.append("Repeatable.")
        if default := _format_default(self.default, option.default_text):
            parts.append(f"[default: {default}]")
        return " ".join(parts)


def _format_default(value: Any, text: str | None) -> str | None:  # noqa: ANN401
    """Return a default for help; None for one that goes without saying."""
    if value is None or value is False or value == ():
        return text
    if value is True:
        return "yes"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{shown} ({text})" if value == 0 and text else shown


def help_options(command: Command) -> list[TyperOption]:
    """Return the options of a command that print other help than `--help`."""
    pages = []
    if command.common:
        pages.append(("-h", "Show the common options.", _write_short_help))
    if command.has_advanced_settings:
        pages.append(("--help-settings", "Show every setting, for --set.", _write_settings))
    return [
        TyperOption(
            param_decls=[flag], is_flag=True, help=text, expose_value=False, is_eager=True, callback=_printing(write)
        )
        for flag, text, write in pages
    ]


def _printing(write: Callable[[Context], str]) -> Any:  # noqa: ANN401
    """Return a callback that prints a page and ends the command, unless the shell asks for completions."""

    def show(context: Context, _: Parameter, value: bool | None) -> None:
        if value and not context.resilient_parsing:
            print(write(context))
            raise typer.Exit

    return show


def _write_short_help(context: Context) -> str:
    """Return usage, summary, examples, arguments and common options, each in one line."""
    command, path = context.command, context.command_path
    summary, _, rest = escape(command.help, undo=True).partition("\n")
    examples = rest.partition("Examples:\n")[2].splitlines()[:_SHOWN_EXAMPLES]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    by_flag = {long_flag(each): each for each in command.params if each.param_type_name == "option"}
    shown = [*arguments, *(by_flag[flag] for flag in command.common)]
    rows = [(format_term(each), escape(each.help, undo=True)) for each in shown]
    return "\n".join(
        [command.get_usage(context), "", f"  {summary}", "", *(f"  {line}" for line in examples), "", "Common options:",
         *(_shorten(line) for line in _format_rows(rows, _TERM_WIDTH)), "", f"{path} --help: all options, and details.",
         *([f"{path} --help-settings: every setting, for {SET}."] if command.has_advanced_settings else [])]
    )  # fmt: skip


def _write_settings(context: Context) -> str:
    """Return every setting: its key, type, choices and default."""
    return format_settings(context.command.settings)


def format_settings(settings: Iterable[Setting]) -> str:
    """Return a line for each setting, by table."""
    lines, table = [f"Settings: {SET} KEY=VALUE, repeatable; or in a TOML file (--config), in tables."], ""
    for setting in settings:
        if setting.section != table:
            table = setting.section
            lines += ["", f"[{table}]"]
        lines += _format_rows([(f"{setting.key}={setting.option.unit}", setting.describe())], _SETTING_WIDTH)
    return "\n".join(lines)


def _format_rows(rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Return two columns, each row in a line."""
    return [f"  {term:<{width}}  {text}".rstrip() for term, text in rows]


def _shorten(line: str) -> str:
    """Return a line of at most `SHORT_HELP_COLUMNS`: without its default, or cut."""
    line = line if len(line) <= SHORT_HELP_COLUMNS else line.partition(" [default")[0]
    return line if len(line) <= SHORT_HELP_COLUMNS else f"{line[: SHORT_HELP_COLUMNS - 1].rpartition(' ')[0]} …"


def format_term(parameter: Parameter) -> str:
    """Return the left column: `-o, --out FOLDER`, or the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    term = ", ".join([*(flag for flag in parameter.opts if not flag.startswith("--")), long_flag(parameter)])
    return term if parameter.is_flag else f"{term} {parameter.metavar or 'TEXT'}"


def escape(text: str | None, *, undo: bool = False) -> str:
    """Return a text whose brackets are none of Rich's markup; `undo`: such a text as it was."""
    return (text or "").replace("\\[", "[") if undo else (text or "").replace("[", "\\[")


def summarize(text: str) -> str:
    """Return the first sentence of a help, shortened to a line."""
    sentence = text.partition(" \\[default")[0].partition(". ")[0].rstrip(".")
    return textwrap.shorten(sentence, 70, placeholder=" …")
