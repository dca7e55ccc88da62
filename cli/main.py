"""The `lm` command: the app, and the one place that turns errors into a line on stderr and an exit code."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli.console import format_label, prepare_standard_streams
from cli.options import CONTEXT_SETTINGS, CommandLine, set_help
from lm.errors import LMError
from lm.training import launcher_env

COMMAND_GROUPS = {
    "Train": {
        "train": "cli.train:train",
        "average": "cli.merge:average",
        "merge": "cli.merge:merge",
    },
    "Use": {
        "generate": "cli.generate:generate",
        "chat": "cli.generate:chat",
        "translate": "cli.translate:translate",
        "fill": "cli.fill:fill",
        "classify": "cli.fill:classify",
        "serve": "cli.serve:serve",
        "compile": "cli.bench:compile_",
    },
    "Evaluate": {
        "perplexity": "cli.perplexity:perplexity",
        "evaluate": "cli.evaluate:evaluate",
        "bench": "cli.bench:bench",
    },
    "Data and exchange": {
        "prepare": "cli.prepare:prepare",
        "tokenizer": "cli.tokenizer:app",
        "corpus": "cli.prepare:app",
        "import": "cli.exchange:import_",
        "export": "cli.exchange:export",
    },
    "Inspect": {
        "info": "cli.runs:info",
        "runs": "cli.runs:runs",
        "plot": "cli.runs:plot",
        "attention": "cli.attention:attention",
    },
}
"""Where each command is, or the app of its own commands, by group of `lm --help`."""
COMMANDS = {name: module for group in COMMAND_GROUPS.values() for name, module in group.items()}
_PROCESS_BEGAN = time.monotonic() - time.process_time()
"""Approximate start of the process, from its CPU time so far; budgets count from there."""

# typer bundles its own click; every usage error is a subclass of the base of its public BadParameter.
_UsageProblem: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        print(f"lm {version('lm-toolkit')} (torch {version('torch')})")
        raise typer.Exit


_Version = typer.Option("--version", help="Print the versions of lm and torch.", callback=_print_version, is_eager=True)


def global_options(*, version: Annotated[bool, _Version] = False) -> None:
    """Train, sample from and evaluate language models on your own text."""


@cache
def _import_command(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if isinstance(command, typer.Typer):
        set_help(command)
        return typer.main.get_group(command)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(command)
    set_help(app)
    return typer.main.get_command(app)


class CommandGroup(TyperGroup):
    """The commands, in groups, each with one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import the command."""
        return _import_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands in groups."""
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                commands = [(name, _import_command(name)) for name in names]
                formatter.write_dl([(f"{name:<10}", each.short_help or each.help) for name, each in commands])


@cache
def build_parser() -> Any:
    """Build the parser of the command line; commands are imported when they are used."""
    app = typer.Typer(
        name="lm",
        callback=global_options,
        epilog="Environment: LM_SEED=1 is --seed 1. Documentation: docs/README.md.",
        cls=CommandGroup,
        rich_markup_mode=None,
        context_settings=CONTEXT_SETTINGS,
    )
    return typer.main.get_command(app)


def run(arguments: Sequence[str], *, is_process: bool = False) -> int:
    """Run a command line; returns its exit code: 0, 1 (bad input), 2 (bad usage), 130 or 143 (stopped)."""
    start_time = _PROCESS_BEGAN if is_process else time.monotonic()
    words = list(arguments) or ["--help"]
    try:
        line = CommandLine(words, start_time)
        return build_parser()(words, prog_name="lm", standalone_mode=False, obj=line) or 0
    except LMError as error:
        return _fail(str(error), error.exit_code)
    except _UsageProblem as error:
        return _fail(format_usage_error(error), 2)
    except (OSError, UnicodeEncodeError, MemoryError, RuntimeError) as error:
        if problem := _describe(error):
            return _fail(problem, 1)
        raise


def _describe(error: Exception) -> str:
    """Describe an error of the system in one line; empty for others. Torch's are told by name: it isn't imported."""
    if isinstance(error, UnicodeEncodeError):
        return f"not valid UTF-8: {error.object!r}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    is_memory |= any(sign in str(error) for sign in ("can't allocate memory", "out of memory"))
    return "out of memory: see docs/troubleshooting.md" * is_memory


def format_usage_error(error: Any) -> str:
    """Return a usage error in one line: what is wrong, a suggestion, and where to read more."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context else "lm"
    message = error.format_message().partition("\n")[0].rstrip(".")
    if hasattr(error, "possibilities"):
        keys = {setting.flag: f"--set {setting.key}" for setting in getattr(context.command.callback, "settings", ())}
        names = [keys[error.option_name]] if error.option_name in keys else error.possibilities or []
        message = f"no option {error.option_name}" + "".join(f" (did you mean {name!r}?)" for name in names[:1])
    return f"{message} (see {path} --help)"


def _fail(message: str, code: int) -> int:
    if launcher_env.is_reporting():
        print(f"lm: {format_label(' '.join(message.split()))}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the `lm` command."""
    prepare_standard_streams()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sys.exit(run(sys.argv[1:], is_process=True))


if __name__ == "__main__":
    main()
