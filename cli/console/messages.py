"""Messages to the user: progress and warnings on stderr, paragraphs of reports on stdout."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from cli.console.escapes import escape_controls
from lm.distributed import launcher_env

_HEADING_WIDTH = 8
_MIN_WIDTH = 10


def print_note(text: str) -> None:
    """Print a line on stderr, with control characters escaped; only on the reporting rank."""
    if launcher_env.is_reporting():
        print(escape_controls(text), file=sys.stderr, flush=True)


def print_labelled(name: str, text: str) -> None:
    """Print a line with a heading on stderr; wrapped on a terminal."""
    line = f"{name:<{_HEADING_WIDTH - 1}} {text}"
    print_note(_wrap(line, sys.stderr, indent=_HEADING_WIDTH))


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for warning in warnings:
        print_labelled("warning", warning)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes about skipped and normalised files on stderr, with the flags of their settings."""
    for note in notes:
        print_labelled("note", note)


def quote(path: Path | str) -> str:
    """Return a path as it is typed in a command."""
    return shlex.quote(str(path))


def print_paragraph(text: str) -> None:
    """Print a line on stdout; wrapped on a terminal."""
    print(_wrap(escape_controls(text), sys.stdout))


def _wrap(text: str, stream: TextIO, *, indent: int = 0) -> str:
    """Wrap a line for a terminal; imports rich only for one, because that is slow."""
    if not stream.isatty():
        return text
    from rich.console import Console

    return wrap_hanging(text, width=Console(file=stream).width, indent=indent)


def wrap_hanging(text: str, *, width: int, indent: int = 0) -> str:
    """Wrap a line between words if it is wider than `width` columns; indent the lines after the first."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    if cell_len(text) <= width:
        return text
    available = max(width - indent, _MIN_WIDTH)
    lines = Text(text[indent:]).wrap(Console(width=width), available)
    return text[:indent] + ("\n" + " " * indent).join(line.plain.rstrip() for line in lines)
