"""Signals that end a process: stop requests, delayed ones, or immediate termination in compiled code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def default_signal_handling() -> Iterator[None]:
    """Within the context, SIGINT and SIGTERM end the process immediately.

    For blocking compiled code, in which Python's handlers would not run. Ignored signals stay ignored. Only in the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in STOP_SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: a handler that is not Python's
            before[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Within the context, SIGINT is delayed until the end of it; only in the main thread.

    For code that is broken by an exception at any point: llvmlite frees an object again if it is interrupted just after
    the first time, and drops exceptions in finalisers.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    received = []
    signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            before(signal.SIGINT, sys._getframe())


class StopSignals:
    """Within the context, the first SIGINT or SIGTERM requests a stop after this step; the second ends the process."""

    def __init__(self, *, on_first: Callable[[], None] = lambda: None) -> None:
        """Create the handler; `on_first` is called at the first signal."""
        self.number, self._on_first = 0, on_first
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> StopSignals:
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        self._on_first()

    def received(self) -> bool:
        return self.number != 0
