"""Help as plain text in groups: it reads well at any width and in a pipe, and is there at once."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperCommand

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class GroupedCommand(TyperCommand):
    """A command whose flags are listed under the name of their panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 (click's types, which typer keeps to itself)
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
