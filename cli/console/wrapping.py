"""Lines that fit a terminal: broken between words, those after the first indented."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_NARROWEST = 10


def hanging(text: str, *, width: int, indent: int = 0) -> str:
    """A line as it is if it fits, else broken between words.

    Args:
        text: one line.
        width: columns of the terminal.
        indent: columns before each line after the first; the text begins with a heading that is as wide.
    """
    if cell_len(text) <= width:
        return text
    room = max(width - indent, _NARROWEST)
    lines = Text(text[indent:]).wrap(Console(width=width), room)
    return text[:indent] + ("\n" + " " * indent).join(line.plain.rstrip() for line in lines)
