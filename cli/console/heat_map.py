"""Heat maps on the terminal: numbers on coloured cells, with aligned labels in any script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from cli.console.text import LINE_END, escape_controls_and_line_ends

_CELL = 3  # columns: a percentage, and room for a character of any width above it
_MAX_NAME_HEIGHT, _MAX_NAME_WIDTH = 12, 24
_HUE, _LIGHT = (255, 150, 70), 0.5


def print_heat_map(rows: Sequence[str], columns: Sequence[str], fractions: Sequence[Sequence[float | None]]) -> None:
    """Print fractions between 0 and 1 in named rows and columns, in bands of as many columns as fit; None: empty."""
    console = Console(highlight=False, soft_wrap=True)
    rows, columns = ([format_name(name) for name in names] for names in (rows, columns))
    limit = max(4, min(_MAX_NAME_WIDTH, console.width // 3))
    margin = min(limit, max(map(cell_len, rows), default=0))
    columns_per_band = max(1, (console.width - margin - 1) // _CELL)
    for start in range(0, len(columns), columns_per_band):
        band = slice(start, start + columns_per_band)
        console.print()
        for line in _column_names(columns[band]):
            console.print(Text(" " * (margin + 1) + line))
        for name, values in zip(rows, fractions, strict=True):
            if any(value is not None for value in values[band]):
                label = Text(name)
                label.truncate(margin, overflow="ellipsis")
                label.align("right", margin)
                cells = Text.assemble(label, " ", *map(_cell, values[band]))
                cells.rstrip()
                console.print(cells)


def format_name(name: str) -> str:
    """Format a name on one line, with visible spaces."""
    return escape_controls_and_line_ends(name).replace("\n", LINE_END).replace(" ", "␣")


def _column_names(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of vertical column names, aligned at the bottom."""
    stacks = [_grapheme_clusters(name) for name in names]
    stacks = [stack if len(stack) <= _MAX_NAME_HEIGHT else [*stack[: _MAX_NAME_HEIGHT - 1], "⋮"] for stack in stacks]
    rising = zip_longest(*(reversed(stack) for stack in stacks), fillvalue="")
    for line in reversed(list(rising)):
        yield "".join(" " * (_CELL - cell_len(character)) + character for character in line).rstrip()


def _grapheme_clusters(name: str) -> list[str]:
    """Split into characters with their combining marks."""
    characters: list[str] = []
    for character in name:
        if characters and cell_len(character) == 0:
            characters[-1] += character
        else:
            characters.append(character)
    return characters


def _cell(fraction: float | None) -> Text:
    """Return the percentage on a colour whose lightness is its square root, so that small ones are distinguishable."""
    if fraction is None:
        return Text(" " * _CELL)
    text = f"{fraction:.0%}".rstrip("%") if fraction >= 0.005 else "·"
    lightness = min(1.0, max(0.0, fraction)) ** 0.5
    background = Color.from_rgb(*(part * lightness for part in _HUE))
    return Text(text.rjust(_CELL), Style(color="#000000" if lightness > _LIGHT else "#ffffff", bgcolor=background))
