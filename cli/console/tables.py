"""Tables on stdout: wrapped to the width of a terminal, a line for each row elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.console.text import format_label, format_value

_NUMBER = re.compile(r"((~ ?|[-+])?\d[\d.,:/e+-]*%?( ?\w{1,2})?|–)?")
_UNLIMITED = 1 << 20


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout, with columns of numbers aligned right and control characters escaped."""
    cells = [[format_label(format_value(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        is_number = all(_NUMBER.fullmatch(row[index]) for row in cells)
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
