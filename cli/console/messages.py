"""Messages: on stderr about what is going on, on stdout as part of a report."""

from __future__ import annotations

import sys

from rich.console import Console

from cli.console.escapes import harmless
from cli.console.wrapping import hanging
from lm.distributed import launched

_HEADING = 8


def note(text: str) -> None:
    """Print a line on stderr; characters that would command a terminal are drawn. One of several processes speaks."""
    if launched.speaks():
        print(harmless(text), file=sys.stderr, flush=True)


def fact(name: str, text: str) -> None:
    """Print a line on stderr that begins with a name; on a terminal it is broken between words."""
    line = f"{name:<{_HEADING - 1}} {text}"
    note(hanging(line, width=Console(stderr=True).width, indent=_HEADING) if sys.stderr.isatty() else line)


def paragraph(text: str) -> None:
    """Print a line on stdout; on a terminal it is broken between words."""
    text = harmless(text)
    print(hanging(text, width=Console().width) if sys.stdout.isatty() else text)
