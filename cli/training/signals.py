"""Ctrl-C and SIGTERM as a wish to stop, so that what was done can be saved first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType


class StopSignals:
    """While open, the first Ctrl-C or SIGTERM asks training to stop after its step; the second ends it at once."""

    def __init__(self, *, says_so: bool = True) -> None:
        """Note no signal yet; with `says_so`, what it brings about is said on stderr when it comes."""
        self.number, self._says_so = 0, says_so
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        if self._says_so:
            print("stopping after this step; once more to stop at once, without saving", file=sys.stderr)

    def received(self) -> bool:
        """Whether a signal has come."""
        return self.number != 0
