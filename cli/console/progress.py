"""Progress on stderr: bars on a terminal, and of what takes long, lines elsewhere."""

from __future__ import annotations

import sys
import time
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
from cli.console.messages import print_note

NOTE_SECONDS = 10.0
"""Seconds between lines of progress where there is no terminal."""
_ECHO_WIDTH = len("^C") + 1


class _BarConsole(Console):
    """Stderr without its last columns: an echoed ^C would wrap a bar to the next line."""

    @property
    def options(self) -> ConsoleOptions:
        """Drawing options."""
        return super().options.update(width=max(1, self.width - _ECHO_WIDTH))


def create_progress(*columns: ProgressColumn, hidden: bool = False, transient: bool = True) -> Progress:
    """Create progress bars on stderr in readable colours; hidden if it isn't a terminal.

    Other output is printed above the bars; a stdout that isn't a terminal is not redirected. Transient bars are removed
    at the end.
    """
    return Progress(
        *columns,
        console=_BarConsole(stderr=True, theme=Theme(BARS)),
        disable=hidden or not sys.stderr.isatty(),
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def show_counter(verb: str, noun: str, *, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a counter on stderr, such as "scoring: 3 pairs", or print it now and then; yield a function that sets it.

    If the total is known, a terminal has a bar and the remaining time.
    """
    counter = TextColumn(f"{{task.description}}: {{task.completed:,}} {noun}", markup=False)
    columns = (SpinnerColumn(), counter) if total is None else (counter, BarColumn(), TimeRemainingColumn())
    noted = time.perf_counter()

    def note(done: int) -> None:
        nonlocal noted
        if (now := time.perf_counter()) - noted > NOTE_SECONDS:
            noted = now
            print_note(f"{verb}: {done:,}{'' if total is None else f' of {total:,}'} {noun}")

    with create_progress(*columns) as bar:
        task = bar.add_task(verb, total=total)
        yield note if bar.disable else lambda done: bar.update(task, completed=done)


@contextmanager
def show_activity(description: str) -> Iterator[None]:
    """Show a line on stderr during an activity, if it is a terminal; it is not redrawn, which would disturb timings."""
    is_shown, line = sys.stderr.isatty(), f"{description} …"
    if is_shown:
        print(line, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


@contextmanager
def show_tokenization_progress() -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a progress bar of tokenisation; yields None if stderr isn't a terminal.

    The yielded function takes the bytes done, and the total if it is known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with create_progress(*columns) as bar:
        task = bar.add_task("tokenizing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
