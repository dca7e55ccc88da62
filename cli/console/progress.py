"""Progress bars on stderr, for as long as that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.theme import Theme

from cli.console.colours import BARS

_ECHO = len("^C") + 1


class _BarConsole(Console):
    """Stderr without its last columns: the ^C that a terminal echoes there would move a bar to the next line."""

    @property
    def options(self) -> ConsoleOptions:
        """How to draw."""
        return super().options.update(width=max(1, self.width - _ECHO))


def progress(*columns: ProgressColumn, hidden: bool = False, transient: bool = True) -> Progress:
    """Progress bars on stderr, in colours that read on any background; nothing is drawn where that is no terminal.

    What is printed meanwhile stands above the bars, but a stdout that is no terminal is left alone.

    Args:
        columns: of each bar.
        hidden: draw nothing in any case.
        transient: take the bars away in the end.
    """
    return Progress(
        *columns,
        console=_BarConsole(stderr=True, theme=Theme(BARS)),
        disable=hidden or not sys.stderr.isatty(),
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def counter(doing: str, things: str) -> Iterator[Callable[[int], None]]:
    """How many things are done, on stderr if that is a terminal; the function it yields takes their number so far.

    Args:
        doing: "scoring", for instance.
        things: what is counted, in the plural.
    """
    with progress(SpinnerColumn(), TextColumn(f"{doing}: {{task.completed:,}} {things}")) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def encode_progress() -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress bar for tokenizing; None where stderr is no terminal.

    The function it yields takes the bytes that are done, and how many there are in all, if that is known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with progress(*columns) as bar:
        task = bar.add_task("tokenizing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
