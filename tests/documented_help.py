"""The help of every command as one page, and the settings of training as another.

`python -m tests.documented_help > docs/commands.md`, and with `settings` for docs/reference/settings.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from cli.flags.help import write_settings_help
from cli.flags.usage import spell
from cli.main import build_app

WIDTH = 98  # as wide as help gets on a terminal of 100 columns or more
_OPENING = """\
# Commands

What `lm COMMAND --help` says. `lm COMMAND -h` shows the common options of a command on one screen, `--help-group NAME`
a group of options, and `lm train --help-settings` all settings, which are on [a page of
their own](reference/settings.md). `make docs` writes both pages.

## Options from the environment

Every option can be set in the environment as well: its name in capitals after `LM_`, so that `LM_DEVICE=cpu` is
`--device cpu` and `LM_MAX_TOKENS=50` is `--max-tokens 50`, in each command that has the flag. Values are checked as
those of flags are. A switch takes yes or no, true or false, 1 or 0; an option that can be repeated gets one value; an
empty variable counts for nothing. Two variables are no options: `LM_CACHE` is the cache folder (`--cache` of
`lm generate` has no variable), and `LM_BACKGROUND_COMPILE=0` compiles decode kernels only with `lm compile`.
`--set` has no variable either: each setting has its own, `LM_EXPERTS` for `model.experts`.

What is more particular wins: a flag over the environment, the environment over `--config`, and that over `--preset`.
A variable is no contradiction where a flag would be one: with `--resume` the run is resumed as it was planned, with a
tokenizer at hand those for training one are ignored. An option that is typed where it has no effect is refused; in the
environment, in a file of settings or in a preset it may stand for other runs. A variable that no command reads is
passed over; if it is nearly the name of one, a line on stderr says so.

## Completion

`lm --install-completion` makes bash, zsh and fish complete commands, flags, choices, settings, presets, corpora, runs
and checkpoints; `lm --show-completion` prints what it installs. zsh and fish call the `lm` that is on the `PATH`.
"""


_SETTINGS = """\
# Settings

A run is defined by its settings. Each has a key, `TABLE.KEY`, which is the same in a run's `config.json`, in a TOML
file (`lm train --config FILE`) and on the command line:

    $ lm train book.txt --set model.experts=8 --set model.experts_per_token=2
    $ lm train book.txt --config moe.toml

```toml
preset = "small"

[model]
experts = 8
experts_per_token = 2
```

`--set` can be repeated and wins like a flag. It takes every setting, those with a flag too; the ones for special
architectures and for experiments have no other option in the help. A switch takes true or false; one that is a list
is given once for each entry. A flag wins over the environment, that over a file, and a file over a preset. `lm train
--dry-run` prints the command with everything that it chose. `make docs` writes this page.

## All settings of a run

What `lm train --help-settings` says, with the defaults of the preset `tiny`.

```text
{settings}
```

## Flags that became settings

These flags are not in the help any more. They still work in this version, as do their variables (`LM_EXPERTS`).

{aliases}
"""


def settings_page() -> str:
    """The page of settings."""
    context = next(context for path, context in _contexts("lm", typer.main.get_command(build_app()), None)
                   if path == "lm train")  # fmt: skip
    formatter = context.make_formatter()
    write_settings_help(context.command, formatter)
    return _SETTINGS.format(settings=_strip(formatter.getvalue()), aliases=alias_table())


def alias_table() -> str:
    """The flags that still work but are not shown, each with what to type instead, as a table."""
    rows = ["| flag | instead |", "|-|-|"]
    for path, command in commands():
        for parameter in command.params:
            if parameter.hidden:
                off = [f"`{parameter.secondary_opts[0]}`"] if parameter.secondary_opts else []
                flags = ", ".join([*(f"`{flag}`" for flag in parameter.opts), *off])
                unit = "" if parameter.is_flag else f"={parameter.metavar}".replace("|", "\\|")
                instead = [f"`{path} {spell(parameter)}{unit}`"]
                instead += ["`=false`"] if off else []
                rows.append(f"| {flags} | {', '.join(instead)} |")
    return "\n".join(rows)


def page() -> str:
    """The whole page of commands."""
    sections = (f"## {name}\n\n```text\n{text}\n```\n" for name, text in helps())
    return "\n".join([_OPENING, *sections])


def helps() -> Iterator[tuple[str, str]]:
    """Each command as it is typed, and its help."""
    for path, context in _contexts("lm", typer.main.get_command(build_app()), None):
        yield path, _strip(context.get_help())


def _strip(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


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
    sys.stdout.write(settings_page() if sys.argv[1:] == ["settings"] else page())
