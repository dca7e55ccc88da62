"""Messages to the user: progress and warnings on stderr, paragraphs of reports on stdout."""

from __future__ import annotations

import sys
from typing import TextIO

from cli.console.escapes import escape_controls
from lm.distributed import launcher_env

_HEADING_WIDTH = 8


def print_note(text: str) -> None:
    """Print a line on stderr, with control characters escaped; only on the reporting rank."""
    if launcher_env.is_reporting():
        print(escape_controls(text), file=sys.stderr, flush=True)


def print_labelled(name: str, text: str) -> None:
    """Print a line with a heading on stderr; wrapped on a terminal."""
    line = f"{name:<{_HEADING_WIDTH - 1}} {text}"
    print_note(_wrap(line, sys.stderr, indent=_HEADING_WIDTH))


def print_paragraph(text: str) -> None:
    """Print a line on stdout; wrapped on a terminal."""
    print(_wrap(escape_controls(text), sys.stdout))


def _wrap(text: str, stream: TextIO, *, indent: int = 0) -> str:
    """Wrap a line for a terminal; imports rich only for one, because that is slow."""
    if not stream.isatty():
        return text
    from rich.console import Console

    from cli.console.wrapping import wrap_hanging

    return wrap_hanging(text, width=Console(file=stream).width, indent=indent)
