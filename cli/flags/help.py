"""The class of every command: its help is plain text in groups, and it reads options from the environment.

Such help reads well at any width and in a pipe.
"""

from __future__ import annotations

import inspect
import os
import textwrap
from typing import Any

import typer
from typer.core import TyperCommand
from typer.models import TyperPath

from cli.flags import environment
from cli.flags.invocation import Invocation
from cli.flags.usage import name_of, wrong_value
from cli.flags.without_effect import refuse
from lm.errors import UsageError

_SHORT = 70
_NAMES_OF_FILES = ("CORPUS…", "FILE", "[FILE]...", "FILE…", "PATH", "RUN2|FILE")
"""Metavars of texts that name files, or globs of them."""
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class GroupedCommand(TyperCommand):
    """A command whose flags are listed under the name of their panel, and can be set in the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (click's types, which typer keeps to itself)
        """Parse a command line, with the environment in place of flags that are not given.

        Raises:
            UsageError: a variable has a wrong value, or an option was typed that has no effect beside the others.
        """
        if not ctx.resilient_parsing:
            ctx.default_map = environment.values(self.params, os.environ)
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = environment.used(ctx).get(getattr(error.param, "name", None) or "")
            if name is None:
                raise
            raise UsageError(wrong_value(name, error.message)) from None
        if not ctx.resilient_parsing:
            self._refuse_empty_names(ctx)
            refuse(Invocation.of(ctx), "arguments")
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
