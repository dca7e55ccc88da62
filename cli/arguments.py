"""Arguments and flags shared by several commands, and text from an argument or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lm.text.decode import decode_blocks, decode_lines, read_file_lines

CorpusFiles = Annotated[
    list[str],
    typer.Argument(metavar="CORPUS…", help="Text, JSON, CSV, Parquet, …; files, folders, globs, or - (stdin)."),
]
SentencePairs = Annotated[
    list[str] | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        help="Sentence pairs: source, tab, target; or JSON, CSV, Parquet. Repeatable.",
    ),
]
ToLanguage = Annotated[
    str | None, typer.Option("--to", metavar="LANGUAGE", help="Target language. [default: de of test.de]")
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
    text = "".join(decode_blocks([sys.stdin.buffer.read()], "stdin"))
    return text.removesuffix("\n").removesuffix("\r")


def read_input_lines(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of files or of stdin, each as soon as it is available."""
    stdin: Any = sys.stdin.buffer
    for file in files or [STDIN]:
        if file == STDIN:
            yield from decode_lines(iter(lambda: stdin.read1(_BLOCK_BYTES), b""), "stdin")
        else:
            yield from read_file_lines(file)
