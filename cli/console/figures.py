"""Tables, line plots, heat maps and progress bars.

Plots in a terminal are Unicode Braille patterns of 2 x 4 dots per character; heat maps are numbers on coloured cells,
with aligned labels in any script. Where there is no terminal, a table has a line for each row, and what takes long
prints lines of progress.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from cli.console import LINES, RESET, format_label, format_value, print_note
from lm.errors import missing_packages
from lm.files import atomic_write_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_NUMBER = re.compile(r"((~ ?|[-+])?\d[\d.,:/e+-]*%?( ?\w{1,2})?|–)?")
_UNLIMITED = 1 << 20


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout, with columns of numbers aligned right and control characters escaped."""
    from rich.console import Console
    from rich.table import Table

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
    columns = max(1, width - margin - 2)
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


_CELL = 3  # columns: a percentage, and room for a character of any width above it
_MAX_NAME_HEIGHT, _MAX_NAME_WIDTH = 12, 24
_HUE, _LIGHT = (255, 150, 70), 0.5


def print_heat_map(rows: Sequence[str], columns: Sequence[str], fractions: Sequence[Sequence[float | None]]) -> None:
    """Print fractions between 0 and 1 in named rows and columns, in bands of as many columns as fit; None: empty."""
    from rich.console import Console
    from rich.table import Table

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


NOTE_SECONDS = 10.0
"""Seconds between lines of progress where there is no terminal."""


def create_progress(*columns: ProgressColumn, transient: bool = True) -> Progress:
    """Create progress bars on stderr, below other output; hidden if that isn't a terminal.

    Transient bars are removed at the end.
    """
    from rich.console import Console
    from rich.progress import Progress

    return Progress(
        *columns,
        console=Console(stderr=True),
        disable=not sys.stderr.isatty() or os.environ.get("TERM") == "dumb",
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def show_counter(verb: str, noun: str, *, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a counter on stderr, such as "scoring: 3 pairs", or print it now and then.

    Yields:
        A function that sets how many are done, and if given of how many.
    """
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    noted = time.perf_counter()

    def note(done: int, of: int | None = total) -> None:
        nonlocal noted
        if time.perf_counter() - noted > NOTE_SECONDS:
            noted = time.perf_counter()
            print_note(f"{verb}: {done:,}{'' if of is None else f' of {of:,}'} {noun}")

    counter = TextColumn(f"{{task.description}}: {{task.completed:,}} {noun}", markup=False)
    with create_progress(counter, BarColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(verb, total=total)
        yield note if bar.disable else lambda done, of=total: bar.update(task, completed=done, total=of)
