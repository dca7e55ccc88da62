"""Line plots in a terminal, in Unicode Braille patterns of 2 x 4 dots per character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cli.console.colours import LINES, RESET

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
    low, high = f"{min(ys):.4g}", f"{max(ys):.4g}"
    margin = max(len(low), len(high))
    columns = width - margin - 2

    def draw(dots: int, index: int) -> str:
        if not colour and len(curves) > 1:
            return _MARKS[index % len(_MARKS)]
        return f"\x1b[38;5;{LINES[index % len(LINES)]}m{chr(_BLANK + dots)}{RESET}" if colour else chr(_BLANK + dots)

    bounds = min(xs), max(xs), min(ys), max(ys)
    drawn = [[" "] * columns for _ in range(height)]
    for index, points in reversed([*enumerate(curves.values())]):
        for row, cells in enumerate(_rasterise(points, bounds, columns, height)):
            for column in (column for column, dots in enumerate(cells) if dots):
                drawn[row][column] = draw(cells[column], index)
    labels = [high, *[""] * (height - 2), low]
    lines = [f"{label:>{margin}} ▏{''.join(cells)}".rstrip() for label, cells in zip(labels, drawn, strict=True)]
    first, last = f"{min(xs):.6g}", f"{max(xs):.6g}"
    axis = " " * (margin + 2) + first + last.rjust(columns - len(first))
    return "\n".join([title, *lines, axis, *(f"{draw(0x24, index)} {name}" for index, name in enumerate(curves))])


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a one-line curve of the last values; empty for fewer than two."""
    shown = list(values)[-2 * width :]
    if len(shown) < 2:
        return ""
    bounds = (0.0, len(shown) - 1.0, min(shown), max(shown))
    return "".join(
        chr(_BLANK + cell) for cell in _rasterise((range(len(shown)), shown), bounds, -(-len(shown) // 2), 1)[0]
    )


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
