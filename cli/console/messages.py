"""Lines about what is going on: on stderr, in the words of one voice."""

from __future__ import annotations

import sys

from rich.console import Console

from cli.console.escapes import harmless
from cli.console.wrapping import hanging

_HEADING = 8


def note(text: str) -> None:
    """One line about what is going on, on stderr; what would command a terminal is drawn."""
    print(harmless(text), file=sys.stderr, flush=True)


def fact(name: str, text: str) -> None:
    """A line about what is going on under a name, on stderr; a terminal gets it broken between words."""
    line = f"{name:<{_HEADING}}{text}"
    note(hanging(line, width=Console(stderr=True).width, indent=_HEADING) if sys.stderr.isatty() else line)


def paragraph(text: str) -> None:
    """A line on stdout; a terminal gets it broken between words."""
    text = harmless(text)
    print(hanging(text, width=Console().width) if sys.stdout.isatty() else text)
