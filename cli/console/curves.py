"""Line plots in a terminal, in Unicode Braille patterns of 2 x 4 dots per character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from cli.console.colours import LINES

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by line, then column
_BLANK = 0x2800
_MARKS = "ox+*#@"

Points = tuple[Sequence[float], Sequence[float]]


def plot_curves(curves: Mapping[str, Points], *, title: str, width: int, height: int, colour: bool) -> str:
    """Draw named curves over common axes, with the range of each axis and a legend.

    Without colours, several curves are drawn in different characters. `title` is that of the y axis, `width` that of
    the plot in columns, and `height` that of the plot area in lines.
    """
    xs = [x for points in curves.values() for x in points[0]]
    ys = [y for points in curves.values() for y in points[1]]
    bounds = left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    if low == high:
        labels = [f"{low:.4g}" if row == (height - 1) // 2 else "" for row in range(height)]
    margin = max(map(len, labels))
    columns = width - margin - 2
    canvases = [_rasterise(points, bounds, columns, height) for points in curves.values()]
    marked = len(curves) > 1 and not colour
    lines, cell = [title], _marked_cell if marked else partial(_cell, colour=colour)
    for row, label in enumerate(labels):
        cells = [cell([canvas[row][column] for canvas in canvases]) for column in range(columns)]
        lines.append(f"{label:>{margin}} ▏{''.join(cells)}".rstrip())
    first, last = f"{left:.6g}", f"{right:.6g}"
    between = first.center(columns).rstrip() if left == right else first + last.rjust(columns - len(first))
    lines.append(" " * (margin + 2) + between)
    for index, name in enumerate(curves):
        lines.append((f"{_mark(index)}  " if marked else _colourise("⠤⠤ ", index, colour)) + name)
    return "\n".join(lines)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a one-line curve of the last values; empty for fewer than two."""
    shown = list(values)[-2 * width :]
    if len(shown) < 2:
        return ""
    bounds = (0.0, len(shown) - 1.0, min(shown), max(shown))
    cells = _rasterise((range(len(shown)), shown), bounds, -(-len(shown) // 2), 1)[0]
    return "".join(chr(_BLANK + cell) for cell in cells)


def _rasterise(points: Points, bounds: tuple[float, float, float, float], width: int, height: int) -> list[list[int]]:
    """Rasterise a curve to the dots of each character."""
    cells = [[0] * width for _ in range(height)]
    left, right, low, high = bounds
    dots = [
        (_scale(x, left, right, 2 * width - 1), _scale(high - y + low, low, high, 4 * height - 1))
        for x, y in zip(*points, strict=True)
    ]
    for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
        segments = max(abs(x1 - x0), abs(y1 - y0), 1)
        for segment in range(segments + 1):
            x, y = round(x0 + (x1 - x0) * segment / segments), round(y0 + (y1 - y0) * segment / segments)
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return cells


def _scale(value: float, low: float, high: float, maximum: int) -> int:
    return round((value - low) / (high - low) * maximum) if high > low else maximum // 2


def _cell(dots: Sequence[int], colour: bool) -> str:
    """Return one character of all curves, in the colour of the first one in it."""
    combined = 0
    for dot in dots:
        combined |= dot
    if not combined:
        return " "
    return _colourise(chr(_BLANK + combined), next(index for index, dot in enumerate(dots) if dot), colour)


def _marked_cell(dots: Sequence[int]) -> str:
    """Return the mark of the first curve in a character."""
    return next((_mark(index) for index, dot in enumerate(dots) if dot), " ")


def _mark(index: int) -> str:
    return _MARKS[index % len(_MARKS)]


def _colourise(text: str, index: int, colour: bool) -> str:
    return f"\x1b[38;5;{LINES[index % len(LINES)]}m{text}\x1b[0m" if colour else text
