"""Heat maps as text: numbers on coloured cells, with aligned labels above and beside them in any script."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size

from cli.console.colours import RESET, in_colour
from cli.console.escapes import LINE_END, visible

Colour = tuple[int, int, int]

NO_COLOURS, FEW_COLOURS, ALL_COLOURS = 0, 256, 1 << 24

_CELL = 3  # columns: a percentage, and room for a character of any width above it
_TALLEST = 12
_WIDEST = 24

# viridis at tenths (van der Walt and Smith 2015): even steps for the eye, in grey too and for the colour-blind.
_VIRIDIS = (
    (68, 1, 84), (72, 36, 117), (65, 68, 135), (53, 95, 141), (42, 120, 142), (33, 145, 140), (34, 168, 132),
    (68, 191, 112), (122, 209, 81), (189, 223, 38), (253, 231, 37),
)  # fmt: skip


@dataclass(frozen=True)
class HeatMap:
    """Shares between 0 and 1 in rows and columns with names.

    Attributes:
        title: a line above it.
        rows: what each row is called.
        columns: what each column is called.
        shares: one list a row; None where there can be nothing.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    shares: Sequence[Sequence[float | None]]


def colour(share: float) -> Colour:
    """A colour from dark violet through green to yellow, by the square root, so that small shares can be told apart."""
    place = min(1.0, max(0.0, share)) ** 0.5 * (len(_VIRIDIS) - 1)
    low = min(int(place), len(_VIRIDIS) - 2)
    red, green, blue = (
        round(a + (b - a) * (place - low)) for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )
    return red, green, blue


def is_light(background: Colour) -> bool:
    """Whether black reads better on it than white. Source: WCAG 2.1, contrast by relative luminance, about."""
    red, green, blue = ((part / 255) ** 2.2 for part in background)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179


def colours_of_terminal() -> int:
    """How many colours stdout takes."""
    if not in_colour():
        return NO_COLOURS
    return ALL_COLOURS if os.environ.get("COLORTERM") in ("truecolor", "24bit") else FEW_COLOURS


def draw(heat_map: HeatMap, *, width: int | None, colours: int) -> Iterator[str]:
    """The lines of a heat map, in bands of as many columns as fit.

    Args:
        heat_map: what to draw.
        width: columns of the terminal; None for lines of any length.
        colours: NO_COLOURS, FEW_COLOURS or ALL_COLOURS.
    """
    rows, columns = [label(name) for name in heat_map.rows], [label(name) for name in heat_map.columns]
    limit = _WIDEST if width is None else max(4, min(_WIDEST, width // 3))
    margin = min(limit, max(map(cell_len, rows), default=0))
    at_once = len(columns) if width is None else max(1, (width - margin - 1) // _CELL)
    yield heat_map.title
    for start in range(0, len(columns), max(1, at_once)):
        band = slice(start, start + at_once)
        yield ""
        for line in _heads(columns[band]):
            yield " " * (margin + 1) + line
        for name, shares in zip(rows, heat_map.shares, strict=True):
            if all(share is None for share in shares[band]):
                continue
            yield f"{_clipped(name, margin)} {''.join(_cell(share, colours) for share in shares[band])}".rstrip()


def label(name: str) -> str:
    """A name on one line, with its spaces made visible and no character that could command a terminal."""
    return visible(name).replace("\n", LINE_END).replace(" ", "␣")


def _clipped(name: str, width: int) -> str:
    """Right-aligned in so many columns, cut where it is longer."""
    if cell_len(name) > width:
        name = set_cell_size(name, width - 1).rstrip() + "…"
    return " " * (width - cell_len(name)) + name


def _heads(names: Sequence[str]) -> Iterator[str]:
    """The lines of names that are written downwards and end on the same line."""
    stacks = [_characters(name) for name in names]
    stacks = [stack if len(stack) <= _TALLEST else [*stack[: _TALLEST - 1], "⋮"] for stack in stacks]
    rising = zip_longest(*(reversed(stack) for stack in stacks), fillvalue="")
    for line in reversed(list(rising)):
        yield "".join(" " * (_CELL - cell_len(character)) + character for character in line).rstrip()


def _characters(name: str) -> list[str]:
    """Characters with the marks that combine with them."""
    characters: list[str] = []
    for character in name:
        if characters and cell_len(character) == 0:
            characters[-1] += character
        else:
            characters.append(character)
    return characters


def _cell(share: float | None, colours: int) -> str:
    if share is None:
        return " " * _CELL
    text = f"{share:{_CELL}.0%}".rstrip("%").rjust(_CELL) if share >= 0.005 else "·".rjust(_CELL)
    if colours == NO_COLOURS:
        return text
    background = colour(share)
    ink = (0, 0, 0) if is_light(background) else (255, 255, 255)
    return f"\x1b[{_code(38, ink, colours)};{_code(48, background, colours)}m{text}{RESET}"


def _code(layer: int, shade: Colour, colours: int) -> str:
    """The parameters of an escape sequence for text (38) or background (48)."""
    if colours == ALL_COLOURS:
        return f"{layer};2;{';'.join(map(str, shade))}"
    red, green, blue = (round(part / 51) for part in shade)  # nearest of the 6 x 6 x 6 cube, about
    return f"{layer};5;{16 + 36 * red + 6 * green + blue}"
