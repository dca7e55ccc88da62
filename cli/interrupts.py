"""Ctrl-C while a module is being imported, which would be left half initialised."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from types import FrameType

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_SECONDS_BETWEEN = 0.05
_MAIN_THREAD = threading.get_ident()


def defer_interrupt_during_imports() -> None:
    """Delay Ctrl-C until the main thread has finished its imports; otherwise it has its usual effect."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename != _IMPORT_SYSTEM:
        frame = frame.f_back
    if frame is not None:
        threading.Timer(_SECONDS_BETWEEN, _interrupt_again).start()
    else:
        raise KeyboardInterrupt


def _interrupt_again() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(_MAIN_THREAD, signal.SIGINT)
