"""Wrapping of lines with a hanging indent."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_MIN_WIDTH = 10


def wrap_hanging(text: str, *, width: int, indent: int = 0) -> str:
    """Wrap a line between words if it is too long.

    Args:
        text: one line.
        width: of the terminal.
        indent: of the lines after the first.
    """
    if cell_len(text) <= width:
        return text
    room = max(width - indent, _MIN_WIDTH)
    lines = Text(text[indent:]).wrap(Console(width=width), room)
    return text[:indent] + ("\n" + " " * indent).join(line.plain.rstrip() for line in lines)
