"""The signals that end a process, and how it ends where Python cannot handle them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
