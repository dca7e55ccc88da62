"""Heat maps on the terminal: numbers on coloured cells, with labels in any script."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from cli.console.text import format_label

_CELL = 3  # columns: a percentage, and room for a character of any width above it
_MAX_NAME_HEIGHT, _MAX_NAME_WIDTH = 12, 24
_HUE, _LIGHT = (255, 150, 70), 0.5


def print_heat_map(rows: Sequence[str], columns: Sequence[str], fractions: Sequence[Sequence[float | None]]) -> None:
    """Print fractions between 0 and 1 in named rows and columns, in bands of as many columns as fit; None: empty."""
    console = Console(highlight=False)
    limit = min(_MAX_NAME_WIDTH, console.width // 3)
    names = [Text(format_name(name), end="") for name in rows]
    margin = min(limit, max((name.cell_len for name in names), default=0))
    columns_per_band = max(1, (console.width - margin - 1) // _CELL)
    for start in range(0, len(columns), columns_per_band):
        band = slice(start, start + columns_per_band)
        table = Table(box=None, padding=0, pad_edge=False)
        table.add_column(width=margin + 1)
        for column in columns[band]:
            table.add_column(Text(_stack(format_name(column))), width=_CELL, justify="right", vertical="bottom")
        for name, values in zip(names, fractions, strict=True):
            if any(value is not None for value in values[band]):
                name.truncate(margin, overflow="ellipsis")
                name.align("right", margin)
                table.add_row(name, *map(_cell, values[band]))
        with console.capture() as drawn:
            console.print(table)
        print("", *(line.rstrip() for line in drawn.get().splitlines()), sep="\n")


def format_name(name: str) -> str:
    """Format a name on one line, with visible spaces."""
    return format_label(name).replace(" ", "␣")


def _stack(name: str) -> str:
    """Write a name downwards; combining marks stay with their character."""
    lines = "".join(f"\n{character}" if cell_len(character) else character for character in name).split("\n")[1:]
    return "\n".join(lines if len(lines) <= _MAX_NAME_HEIGHT else [*lines[: _MAX_NAME_HEIGHT - 1], "⋮"])


def _cell(fraction: float | None) -> Text:
    """Return the percentage on a colour whose lightness is its square root, so that small ones are distinguishable."""
    if fraction is None:
        return Text()
    text = f"{fraction:.0%}".rstrip("%") if fraction >= 0.005 else "·"
    lightness = min(1.0, max(0.0, fraction)) ** 0.5
    background = Color.from_rgb(*(part * lightness for part in _HUE))
    return Text(text.rjust(_CELL), Style(color="#000000" if lightness > _LIGHT else "#ffffff", bgcolor=background))
