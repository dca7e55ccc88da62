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

from cli.console.text import format_label, prepare_standard_streams
from cli.options import CONTEXT_SETTINGS, CommandLine, set_help
from cli.usage import format_usage_error
from lm.distributed import launcher_env
from lm.errors import LMError

COMMAND_GROUPS = {
    "Train": {
        "demo": "cli.demo:demo",
        "train": "cli.training.train:train",
        "average": "cli.average:average",
        "merge": "cli.merge:merge",
    },
    "Use": {
        "generate": "cli.generation.generate:generate",
        "chat": "cli.generation.chat:chat",
        "translate": "cli.translation.translate:translate",
        "fill": "cli.fill:fill",
        "classify": "cli.classify:classify",
        "serve": "cli.serve:serve",
        "compile": "cli.compile_:compile_",
    },
    "Evaluate": {
        "perplexity": "cli.perplexity.perplexity:perplexity",
        "evaluate": "cli.evaluate:evaluate",
        "bench": "cli.bench:bench",
    },
    "Data and exchange": {
        "prepare": "cli.prepare:prepare",
        "tokenizer": "cli.tokenizer:app",
        "corpus": "cli.corpus:app",
        "import": "cli.import_:import_",
        "export": "cli.export:export",
    },
    "Inspect": {
        "info": "cli.info:info",
        "runs": "cli.runs:runs",
        "plot": "cli.runs:plot",
        "attention": "cli.attention.attention:attention",
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

        import torch

        from cli.console.text import format_threads
        from lm.config.hardware import HardwareConfig
        from lm.hardware import select_inference_hardware

        hardware = select_inference_hardware(HardwareConfig())
        device = f"cuda: {torch.cuda.get_device_name()}" if hardware.device == "cuda" else hardware.device
        print(f"lm {version('lm-toolkit')} (torch {torch.__version__}, {device}, {format_threads(hardware.threads)})")
        raise typer.Exit


def global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version, torch's and the device, and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Train, sample from and evaluate language models on your own text."""


class CommandGroup(TyperGroup):
    """The commands, in groups, each with one line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, and the options in one line."""
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl(
                    [(f"{name:<10}", each.short_help or each.help or "") for name, each in commands if each]
                )
        flags = [flag for parameter in self.get_params(ctx) for flag in sorted(parameter.opts, key=len)]
        formatter.write_paragraph()
        formatter.write_text(f"Options: {', '.join(flags)}")


@cache
def build_app(*names: str) -> typer.Typer:
    """Build the app with some or all of `COMMANDS`; others are not imported, to save time."""
    app = typer.Typer(
        name="lm",
        callback=global_options,
        help="Train, sample from and evaluate language models on your own text.",
        epilog="Environment: LM_SEED=1 is --seed 1. Documentation: docs/README.md.",
        cls=CommandGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT_SETTINGS,
    )
    for name in names or COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
            set_help(command)
        else:
            app.command(name)(command)
    set_help(app)
    return app


@cache
def _build_parser(*names: str) -> Any:
    """Build the parser once; Typer would build it for each call."""
    return typer.main.get_command(build_app(*names))


def run(arguments: Sequence[str], *, is_process: bool = False) -> int:
    """Run a command line; returns its exit code: 0, 1 (bad input), 2 (bad usage), 130 or 143 (stopped)."""
    start_time = _PROCESS_BEGAN if is_process else time.monotonic()
    words = list(arguments)
    try:
        words = _insert_default_command(arguments)
        command = _build_parser(*[name for name in words[:1] if name in COMMANDS])
        return command(words, prog_name="lm", standalone_mode=False, obj=CommandLine(words, run, start_time)) or 0
    except LMError as error:
        return _fail(str(error), error.exit_code)
    except _UsageProblem as error:
        return _fail(format_usage_error(error), 2)
    except typer.Abort:
        return 130
    except (OSError, UnicodeEncodeError) as error:
        return _fail(_describe_os_error(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail(
            "the memory is not enough for this: ask for less at a time, or for a smaller model "
            "(docs/troubleshooting.md)",
            1,
        )


def _describe_os_error(error: OSError | UnicodeEncodeError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"not valid UTF-8: {error.object!r}"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _insert_default_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line with omitted parts inserted."""
    if list(arguments[:1]) == ["train"]:
        from cli.training.train import newest_by_default

        return newest_by_default(arguments)
    return list(arguments) or ["--help"]


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out; compares names and messages, so that torch need not be imported."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
        or "Storage size calculation overflowed" in str(error)
    )


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
