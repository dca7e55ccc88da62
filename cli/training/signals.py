"""Ctrl-C, SIGTERM and a closed terminal as a wish to stop, so that what was done can be saved first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

from lm.signals import ending


class StopSignals:
    """While open, the first signal to end a command asks training to stop after its step; the second ends it at once.

    The signals are Ctrl-C and those of `lm.signals.ending`. SIGHUP never counts as one of two: when a terminal is
    closed, the shell and the system may both send one, and a service manager sends one right after SIGTERM.
    """

    def __init__(self, *, says_so: bool = True) -> None:
        """Note no signal yet; with `says_so`, what it brings about is said on stderr when it comes."""
        self.number, self._asked, self._says_so = 0, False, says_so
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
        if self._says_so:
            print("stopping after this step; once more to stop at once, without saving", file=sys.stderr)

    def received(self) -> bool:
        """Whether a signal has come."""
        return self.number != 0
