"""Signals that end a process: stop requests, delayed ones, or immediate termination in compiled code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def default_signal_handling() -> Iterator[None]:
    """Within the context, SIGINT and SIGTERM end the process immediately; ignored signals stay ignored.

    For blocking compiled code, in which Python's handlers would not run. Only in the main thread.
    """
    with _handling(signal.SIG_DFL):
        yield


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
    """Within the context, the first SIGINT or SIGTERM requests a stop after this step; the second ends the process."""

    def __init__(self, *, on_first: Callable[[], None] = lambda: None) -> None:
        """Create the handler; `on_first` is called at the first signal."""
        self.number, self._on_first, self._context = 0, on_first, _handling(self._note)

    def __enter__(self) -> StopSignals:
        self._context.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._context.__exit__(*details)

    def _note(self, number: int, _frame: object) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        self._on_first()

    def received(self) -> bool:
        return self.number != 0
