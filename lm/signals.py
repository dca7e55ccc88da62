"""The signals that end a process: as a wish to stop, or at once where Python cannot handle them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def ending() -> list[signal.Signals]:
    """The signals besides Ctrl-C that end a command: SIGTERM, and SIGHUP unless it is ignored, as `nohup` wants it."""
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hang_up]


@contextmanager
def ended_at_once() -> Iterator[None]:
    """While open, Ctrl-C and the signals of `ending` end the process at once, without Python's handlers.

    For work in compiled code that waits, in which no handler would run, or from which no exception would come back.
    Ignored signals stay ignored. Threads other than the main one have no say in signals, and nothing changes in them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGINT, *ending()):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: a handler that is not Python's
            before[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopSignals:
    """While open, the first signal to end a command asks training to stop after its step; the second ends it at once.

    The signals are Ctrl-C and those of `lm.signals.ending`. SIGHUP never counts as one of two: when a terminal is
    closed, the shell and the system may both send one, and a service manager sends one right after SIGTERM.
    """

    def __init__(self, *, tell: Callable[[], None] = lambda: None) -> None:
        """Note no signal yet; `tell` is called when the first one comes."""
        self.number, self._asked, self._tell = 0, False, tell
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, *ending()):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGHUP", None):
            self.number = self.number or number
            return
        if self._asked:
            raise SystemExit(128 + number)
        self.number, self._asked = number, True
        self._tell()

    def received(self) -> bool:
        """Whether a signal has come."""
        return self.number != 0
