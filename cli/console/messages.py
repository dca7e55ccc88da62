"""Messages: on stderr about progress, on stdout as part of a report."""

from __future__ import annotations

import sys
from typing import TextIO

from cli.console.escapes import harmless
from lm.distributed import launched

_HEADING = 8


def note(text: str) -> None:
    """Print a line on stderr; characters that would command a terminal are drawn. One of several processes speaks."""
    if launched.speaks():
        print(harmless(text), file=sys.stderr, flush=True)


def fact(name: str, text: str) -> None:
    """Print a line on stderr that begins with a name; on a terminal it is broken between words."""
    line = f"{name:<{_HEADING - 1}} {text}"
    note(_broken(line, sys.stderr, indent=_HEADING))


def paragraph(text: str) -> None:
    """Print a line on stdout; on a terminal it is broken between words."""
    print(_broken(harmless(text), sys.stdout))


def _broken(text: str, stream: TextIO, *, indent: int = 0) -> str:
    """A line as a stream is to have it; rich is imported for a terminal alone, for it takes time."""
    if not stream.isatty():
        return text
    from rich.console import Console

    from cli.console.wrapping import hanging

    return hanging(text, width=Console(file=stream).width, indent=indent)
