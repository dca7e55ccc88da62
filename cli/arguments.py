"""Arguments and flags shared by several commands, text from an argument or a pipe, and shell completion.

Completion reads folders only, and imports nothing slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lm.config.presets import PRESETS
from lm.run_folder import CHECKPOINTS, RUNS, is_checkpoint_name, is_run
from lm.text.decode import decode_blocks, decode_lines, normalize_text
from lm.text.find import read_lines

CorpusFiles = Annotated[
    list[str],
    typer.Argument(metavar="CORPUS…", help="Text, JSON, CSV, Parquet, …; files, folders, globs, or - (stdin)."),
]
ToLanguage = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="LANGUAGE", help="Target language, if the model has several. [default: de of test.de]"
    ),
]
NewRun = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the new run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_BLOCK_BYTES = 1 << 16
STDIN = Path("-")
"""The file name of stdin."""


def read_text_argument(argument: str | None) -> str | None:
    """Return the text of an argument, or of stdin without its final line end for `-` or piped input.

    None without an argument at a terminal.
    """
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        return None
    return normalize_text("".join(decode_blocks([sys.stdin.buffer.read()], "stdin"))).removesuffix("\n")


def read_input_lines(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of files or of stdin, each as soon as it is available."""
    stdin: Any = sys.stdin.buffer
    for file in files or [STDIN]:
        if file == STDIN:
            yield from decode_lines(iter(lambda: stdin.read1(_BLOCK_BYTES), b""), "stdin")
        else:
            yield from read_lines(str(file))


Complete = Callable[[str], list[str]]


def complete_from(names: Iterable[str]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_presets = complete_from(PRESETS)


def complete_settings(settings: Iterable[Any]) -> Complete:
    """Return a completer of KEY=VALUE: keys, and the values of a key that has a list of them."""

    def complete(incomplete: str) -> list[str]:
        offered = []
        for setting in settings:
            values = ("true", "false") if setting.plain_type is bool else setting.choices
            is_named = incomplete.startswith(f"{setting.key}=")
            offered += [f"{setting.key}={value}" for value in (values if is_named else ("",))]
        return complete_from(offered)(incomplete)

    return complete


def complete_runs(incomplete: str) -> list[str]:
    """Complete a run in the current folder, in runs/ or in the typed folder, or a checkpoint of a run.

    Without matches the shell completes files and folders.
    """
    typed = Path(incomplete[: incomplete.rfind("/") + 1])
    folders = [typed / CHECKPOINTS] if is_run(typed) else [typed] if "/" in incomplete else [RUNS, typed]
    paths = [path for folder in folders for path in sorted(folder.glob("*"))]
    return complete_from(str(path) for path in paths if is_run(path) or is_checkpoint_name(path.name))(incomplete)


def complete_runs_or_presets(incomplete: str) -> list[str]:
    """Complete a run, a checkpoint or a preset."""
    return [*complete_runs(incomplete), *complete_presets(incomplete)]
