"""Heat maps as text: numbers on coloured cells, with aligned labels in any script."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size

from cli.console.colours import RESET, is_colour_enabled
from cli.console.text import LINE_END, escape_controls_and_line_ends

Colour = tuple[int, int, int]

NO_COLOURS, FEW_COLOURS, ALL_COLOURS = 0, 256, 1 << 24

_CELL = 3  # columns: a percentage, and room for a character of any width above it
_MAX_NAME_HEIGHT = 12
_MAX_NAME_WIDTH = 24

# viridis at tenths (van der Walt and Smith 2015): even steps for the eye, in grey too and for the colour-blind.
_VIRIDIS = (
    (68, 1, 84), (72, 36, 117), (65, 68, 135), (53, 95, 141), (42, 120, 142), (33, 145, 140), (34, 168, 132),
    (68, 191, 112), (122, 209, 81), (189, 223, 38), (253, 231, 37),
)  # fmt: skip


@dataclass(frozen=True)
class HeatMap:
    """Fractions between 0 and 1 in named rows and columns; one list per row, None for empty cells."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    fractions: Sequence[Sequence[float | None]]


def fraction_colour(fraction: float) -> Colour:
    """Map a fraction to viridis by its square root, so that small fractions are distinguishable."""
    position = min(1.0, max(0.0, fraction)) ** 0.5 * (len(_VIRIDIS) - 1)
    low = min(int(position), len(_VIRIDIS) - 2)
    red, green, blue = (
        round(a + (b - a) * (position - low)) for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )
    return red, green, blue


def is_light(background: Colour) -> bool:
    """Whether black text is more readable on it than white. Source: WCAG 2.1, relative luminance (approximate)."""
    red, green, blue = ((part / 255) ** 2.2 for part in background)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179


def detect_colours() -> int:
    """Return the number of colours of stdout."""
    if not is_colour_enabled():
        return NO_COLOURS
    return ALL_COLOURS if os.environ.get("COLORTERM") in ("truecolor", "24bit") else FEW_COLOURS


def draw_heat_map(heat_map: HeatMap, *, width: int | None, colours: int) -> Iterator[str]:
    """Yield the lines of a heat map, in bands of as many columns as fit; a width of None is unlimited."""
    rows, columns = [format_name(name) for name in heat_map.rows], [format_name(name) for name in heat_map.columns]
    limit = _MAX_NAME_WIDTH if width is None else max(4, min(_MAX_NAME_WIDTH, width // 3))
    margin = min(limit, max(map(cell_len, rows), default=0))
    columns_per_band = len(columns) if width is None else max(1, (width - margin - 1) // _CELL)
    yield heat_map.title
    for start in range(0, len(columns), max(1, columns_per_band)):
        band = slice(start, start + columns_per_band)
        yield ""
        for line in _column_names(columns[band]):
            yield " " * (margin + 1) + line
        for name, fractions in zip(rows, heat_map.fractions, strict=True):
            if all(fraction is None for fraction in fractions[band]):
                continue
            cells = "".join(_cell(fraction, colours) for fraction in fractions[band])
            yield f"{_fit_name(name, margin)} {cells}".rstrip()


def format_name(name: str) -> str:
    """Format a name on one line, with visible spaces."""
    return escape_controls_and_line_ends(name).replace("\n", LINE_END).replace(" ", "␣")


def _fit_name(name: str, width: int) -> str:
    """Align right, and truncate if too long."""
    if cell_len(name) > width:
        name = set_cell_size(name, width - 1).rstrip() + "…"
    return " " * (width - cell_len(name)) + name


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


def _cell(fraction: float | None, colours: int) -> str:
    if fraction is None:
        return " " * _CELL
    text = f"{fraction:{_CELL}.0%}".rstrip("%").rjust(_CELL) if fraction >= 0.005 else "·".rjust(_CELL)
    if colours == NO_COLOURS:
        return text
    background = fraction_colour(fraction)
    ink = (0, 0, 0) if is_light(background) else (255, 255, 255)
    return f"\x1b[{_colour_code(38, ink, colours)};{_colour_code(48, background, colours)}m{text}{RESET}"


def _colour_code(layer: int, shade: Colour, colours: int) -> str:
    """Return the parameters of an escape sequence for text (38) or background (48)."""
    if colours == ALL_COLOURS:
        return f"{layer};2;{';'.join(map(str, shade))}"
    red, green, blue = (round(part / 51) for part in shade)  # nearest of the 6 x 6 x 6 cube, about
    return f"{layer};5;{16 + 36 * red + 6 * green + blue}"
