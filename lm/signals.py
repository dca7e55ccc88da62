"""Signals that end a process: stop requests, delayed ones, or immediate termination in compiled code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _handling(handler: Any) -> Iterator[None]:
    """Within the context, SIGINT and SIGTERM have other handlers, unless they are ignored or this is another thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: a handler that is not Python's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


default_signal_handling = partial(_handling, signal.SIG_DFL)
"""Within the context, SIGINT and SIGTERM end the process immediately; ignored signals stay ignored.

For blocking compiled code, in which Python's handlers would not run. Only in the main thread.
"""


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Within the context, SIGINT and SIGTERM are delayed until the end of it; only in the main thread.

    For code that is broken by an exception at any point: llvmlite frees an object again if it is interrupted just after
    the first time, and drops exceptions in finalisers.
    """
    received: list[int] = []
    with _handling(lambda number, _frame: received.append(number)):
        yield
    for number in received[:1]:
        signal.raise_signal(number)


class StopSignals:
    """The first SIGINT or SIGTERM requests a stop after this step; the second ends the process.

    Attributes:
        number: of the first signal; 0 until there is one.
    """

    def __init__(self, *, on_first: Callable[[], None] = lambda: None) -> None:
        """Create the handler; `on_first` is called at the first signal."""
        self.number, self._on_first = 0, on_first

    def handling(self) -> AbstractContextManager[None]:
        """Handle signals within the context."""
        return _handling(self._note)

    def _note(self, number: int, _frame: object) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        self._on_first()

    def received(self) -> bool:
        return self.number != 0
