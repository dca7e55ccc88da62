"""Tables on stdout: framed on a terminal that is wide enough, plain lines elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.console.escapes import label

_NUMBER = re.compile(r"((~ ?|-)?\d[\d.,:/e+-]*%?( ?\w{1,2})?|–)?")
_NARROWEST_COLUMN = 8


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout, numbers to the right.

    On a terminal that is wide enough it is framed; on a narrower one its widest text is broken between words;
    elsewhere each row is a line. Characters that would command a terminal are drawn.
    """
    rows = [list(map(label, row)) for row in rows]
    is_number = [all(_NUMBER.fullmatch(row[place]) for row in rows) for place in range(len(columns))]
    if sys.stdout.isatty() and (drawn := _drawn(columns, rows, is_number)):
        Console().print(drawn)
        return
    lines = [list(columns), *rows]
    widths = _widths(lines)
    for line in lines:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = zip(line, spaces, is_number, strict=True)
        print("  ".join(space + cell if right else cell + space for cell, space, right in cells).rstrip())


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Columns of the terminal that each column of a table needs."""
    return [max(max(map(cell_len, cell.split("\n"))) for cell in cells) for cells in zip(*lines, strict=True)]


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> Table | None:
    """The table as it fits the terminal; None if that is too narrow for one."""
    widths, room, gaps = _widths([columns, *rows]), Console().width, 2 * (len(columns) - 1)
    framed, wrapped = sum(widths) + 3 * len(widths) + 1 <= room, None
    if sum(widths) + gaps > room:
        columns = [re.sub(r" |(?<=/)", "\n", name) for name in columns]
        widths = _widths([columns, *rows])
    if sum(widths) + gaps > room:
        texts = [place for place, right in enumerate(is_number) if not right]
        wrapped = max(texts, key=lambda place: widths[place], default=None)
        if wrapped is None or sum(widths) - widths[wrapped] + gaps + min(widths[wrapped], _NARROWEST_COLUMN) > room:
            return None
    style, padding = (box.HEAVY_HEAD, (0, 1)) if framed else (None, (0, 2, 0, 0))
    drawn = Table(header_style="bold", box=style, pad_edge=framed, padding=padding)
    for place, (name, right) in enumerate(zip(columns, is_number, strict=True)):
        drawn.add_column(Text(name), justify="right" if right else "left", no_wrap=place != wrapped, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn
