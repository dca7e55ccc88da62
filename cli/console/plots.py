"""Line plots in a terminal, in Unicode Braille patterns of 2 x 4 dots per character, and pictures by matplotlib."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.console.colours import LINES, RESET
from lm.errors import missing_packages
from lm.files import atomic_write_bytes

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by line, then column
_BLANK = 0x2800
_MARKS = "ox+*#@"

Points = tuple[Sequence[float], Sequence[float]]


def plot_curves(curves: Mapping[str, Points], *, title: str, width: int, height: int, colour: bool) -> str:
    """Draw named curves over common axes, with the range of each axis and a legend.

    Without colours, several curves are drawn in different characters. `title` is that of the y axis, `width` that of
    the plot in columns, and `height` that of the plot area in lines.
    """
    xs, ys = ([value for points in curves.values() for value in points[axis]] for axis in (0, 1))
    low, high, first, last = f"{min(ys):.4g}", f"{max(ys):.4g}", f"{min(xs):.6g}", f"{max(xs):.6g}"
    margin = max(len(low), len(high))
    columns = width - margin - 2
    drawn = [[" "] * columns for _ in range(height)]
    legend: list[str] = []
    for index, (name, points) in reversed([*enumerate(curves.items())]):
        mark = _MARKS[index % len(_MARKS)] if len(curves) > 1 and not colour else None
        paint = f"\x1b[38;5;{LINES[index % len(LINES)]}m{{}}{RESET}" if colour else "{}"
        for row, cells in zip(drawn, _rasterise(points, (xs, ys), columns, height), strict=True):
            for column in filter(cells.__getitem__, range(columns)):
                row[column] = mark or paint.format(chr(_BLANK + cells[column]))
        legend.insert(0, f"{mark or paint.format(chr(_BLANK + 0x24))} {name}")
    labels = [high, *[""] * (height - 2), low]
    lines = [f"{label:>{margin}} ▏{''.join(cells)}".rstrip() for label, cells in zip(labels, drawn, strict=True)]
    return "\n".join([title, *lines, " " * (margin + 2) + first + last.rjust(columns - len(first)), *legend])


def _rasterise(points: Points, axes: Points, width: int, height: int) -> list[list[int]]:
    """Rasterise a curve to the dots of each character; `axes` has the values that must fit."""

    def scale(values: Sequence[float], axis: Sequence[float], last: int) -> list[int]:
        low, extent = min(axis), max(axis) - min(axis)
        return [round((value - low) / extent * last) if extent else last // 2 for value in values]

    columns = scale(points[0], axes[0], 2 * width - 1)
    rows = [4 * height - 1 - row for row in scale(points[1], axes[1], 4 * height - 1)]
    dots = [*zip(columns, rows, strict=True)]
    cells = [[0] * width for _ in range(height)]
    for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
        segments = max(abs(x1 - x0), abs(y1 - y0), 1)
        for segment in range(segments + 1):
            x, y = round(x0 + (x1 - x0) * segment / segments), round(y0 + (y1 - y0) * segment / segments)
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return cells


def load_pyplot() -> Any:
    """Import pyplot, set up for files; raises InputError if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise missing_packages("a picture", "matplotlib") from None
    mpl.use("Agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it lists every missing font weight
    from matplotlib import pyplot

    return pyplot


def save_figure(pyplot: Any, figure: Any, path: Path) -> None:
    """Write a figure as a .png or .svg, and close it."""
    with atomic_write_bytes(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
    pyplot.close(figure)
