"""Tables on stdout: framed on a wide terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.console.escapes import format_label

_NUMBER = re.compile(r"((~ ?|[-+])?\d[\d.,:/e+-]*%?( ?\w{1,2})?|–)?")
_MIN_COLUMN_WIDTH = 8


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout, with numbers aligned right.

    On a wide terminal it is framed; on a narrower one its widest text column is wrapped; elsewhere each row is a line.
    Control characters are escaped.
    """
    rows = [list(map(format_label, row)) for row in rows]
    is_number = [all(_NUMBER.fullmatch(row[index]) for row in rows) for index in range(len(columns))]
    if sys.stdout.isatty() and (framed_table := _build_table(columns, rows, is_number)):
        Console().print(framed_table)
        return
    lines = [list(columns), *rows]
    widths = _column_widths(lines)
    for line in lines:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = zip(line, spaces, is_number, strict=True)
        print("  ".join(space + cell if right else cell + space for cell, space, right in cells).rstrip())


def _column_widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(max(map(cell_len, cell.split("\n"))) for cell in cells) for cells in zip(*lines, strict=True)]


def _build_table(columns: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> Table | None:
    """Return the table for a terminal; None if that is too narrow."""
    widths, terminal_width, gaps = _column_widths([columns, *rows]), Console().width, 2 * (len(columns) - 1)
    framed, wrapped = sum(widths) + 3 * len(widths) + 1 <= terminal_width, None
    if sum(widths) + gaps > terminal_width:
        columns = [re.sub(r" |(?<=/)", "\n", name) for name in columns]
        widths = _column_widths([columns, *rows])
    if sum(widths) + gaps > terminal_width:
        texts = [index for index, right in enumerate(is_number) if not right]
        wrapped = max(texts, key=lambda index: widths[index], default=None)
        if (
            wrapped is None
            or sum(widths) - widths[wrapped] + gaps + min(widths[wrapped], _MIN_COLUMN_WIDTH) > terminal_width
        ):
            return None
    style, padding = (box.HEAVY_HEAD, (0, 1)) if framed else (None, (0, 2, 0, 0))
    drawn = Table(header_style="bold", box=style, pad_edge=framed, padding=padding)
    for index, (name, right) in enumerate(zip(columns, is_number, strict=True)):
        drawn.add_column(Text(name), justify="right" if right else "left", no_wrap=index != wrapped, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn
