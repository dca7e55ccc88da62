"""Progress on stderr: bars on a terminal, and of what takes long, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
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

from cli.console.text import print_note

NOTE_SECONDS = 10.0
"""Seconds between lines of progress where there is no terminal."""


def create_progress(*columns: ProgressColumn, hidden: bool = False, transient: bool = True) -> Progress:
    """Create progress bars on stderr, below other output; hidden if it isn't a terminal.

    Transient bars are removed at the end.
    """
    return Progress(
        *columns,
        console=Console(stderr=True),
        disable=hidden or not sys.stderr.isatty(),
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def show_counter(verb: str, noun: str, *, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a counter on stderr, such as "scoring: 3 pairs", or print it now and then; yield a function that sets it."""
    counter = TextColumn(f"{{task.description}}: {{task.completed:,}} {noun}", markup=False)
    columns = (SpinnerColumn(), counter) if total is None else (counter, BarColumn(), TimeRemainingColumn())
    noted = time.perf_counter()

    def note(done: int) -> None:
        nonlocal noted
        if time.perf_counter() - noted > NOTE_SECONDS:
            noted = time.perf_counter()
            print_note(f"{verb}: {done:,}{'' if total is None else f' of {total:,}'} {noun}")

    with create_progress(*columns) as bar:
        task = bar.add_task(verb, total=total)
        yield note if bar.disable else lambda done: bar.update(task, completed=done)


@contextmanager
def show_bytes(description: str = "tokenizing") -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a bar of bytes; yields a function of the bytes done and in total, or None if stderr isn't a terminal."""
    columns = (TextColumn(description, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with create_progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task(description, total=None)
        yield None if bar.disable else lambda done, total: bar.update(task, completed=done, total=total)
