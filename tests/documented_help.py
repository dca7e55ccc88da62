"""The help of every command as one page: `python -m tests.documented_help > docs/commands.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from cli.main import build_app

WIDTH = 98  # as wide as help gets on a terminal of 100 columns or more
_OPENING = """\
# Commands

What `lm COMMAND --help` says. `make docs` writes this page, and a test compares it with the commands.

## Options from the environment

Every option can be set in the environment as well: its name in capitals after `LM_`, so that `LM_DEVICE=cpu` is
`--device cpu` and `LM_MAX_TOKENS=50` is `--max-tokens 50`, in each command that has the flag. Values are checked as
those of flags are. A switch takes yes or no, true or false, 1 or 0; an option that can be repeated gets one value; an
empty variable counts for nothing. `LM_CACHE` alone is something else, the cache folder, so
`--cache` of `lm generate` has no variable.

What is more particular wins: a flag over the environment, the environment over `--config`, and that over `--preset`.
A variable is no contradiction where a flag would be one: with `--resume` the run is resumed as it was planned, with a
tokenizer at hand those for training one are ignored. An option that is typed where it has no effect is refused; in the
environment, in a file of settings or in a preset it may stand for other runs. A variable that no command reads is
passed over; if it is nearly the name of one, a line on stderr says so.

## Completion

`lm --install-completion` makes bash, zsh and fish complete commands, flags, presets, corpora, runs and checkpoints;
`lm --show-completion` prints what it installs. zsh and fish call the `lm` that is on the `PATH`.
"""


def page() -> str:
    """The whole page."""
    sections = (f"## {name}\n\n```text\n{text}\n```\n" for name, text in helps())
    return "\n".join([_OPENING, *sections])


def helps() -> Iterator[tuple[str, str]]:
    """Each command as it is typed, and its help."""
    for path, context in _contexts("lm", typer.main.get_command(build_app()), None):
        yield path, "\n".join(line.rstrip() for line in context.get_help().strip().splitlines())


def commands() -> Iterator[tuple[str, Any]]:
    """Each command as it is typed, and typer's object for it."""
    for path, context in _contexts("lm", typer.main.get_command(build_app()), None):
        yield path, context.command


def _contexts(name: str, command: Any, parent: Any) -> Iterator[tuple[str, Any]]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH)
    yield context.command_path, context
    for below, subcommand in getattr(command, "commands", {}).items():
        yield from _contexts(below, subcommand, context)


if __name__ == "__main__":
    sys.stdout.write(page())
