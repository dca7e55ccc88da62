"""Progress on stderr: bars on a terminal, and of what takes long, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from cli.console.text import print_note

NOTE_SECONDS = 10.0
"""Seconds between lines of progress where there is no terminal."""


def create_progress(*columns: ProgressColumn, transient: bool = True) -> Progress:
    """Create progress bars on stderr, below other output; hidden if that isn't a terminal.

    Transient bars are removed at the end.
    """
    return Progress(
        *columns,
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def show_counter(verb: str, noun: str, *, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a counter on stderr, such as "scoring: 3 pairs", or print it now and then.

    Yields:
        A function that sets how many are done, and if given of how many.
    """
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
