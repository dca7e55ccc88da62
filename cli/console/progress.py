"""Progress bars on stderr, for as long as that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.theme import Theme

from cli.console.colours import BARS

_ECHO = len("^C") + 1


class _BarConsole(Console):
    """Stderr without its last columns: the ^C that a terminal echoes there would move a bar to the next line."""

    @property
    def options(self) -> ConsoleOptions:
        """How to draw."""
        return super().options.update(width=max(1, self.width - _ECHO))


def progress_console() -> Console:
    """Stderr, for progress bars in colours that read on any background."""
    return _BarConsole(stderr=True, theme=Theme(BARS))


@contextmanager
def encode_progress() -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress bar for tokenizing, fed with (bytes done, bytes in all if known); None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task("tokenizing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
