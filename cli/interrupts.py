"""Ctrl-C while torch is being imported."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from types import FrameType

_SECONDS_BETWEEN = 0.05
_MAIN_THREAD = threading.get_ident()


def defer_interrupt_during_imports() -> None:
    """Delay Ctrl-C until torch is imported; otherwise it has its usual effect."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        threading.Timer(_SECONDS_BETWEEN, _interrupt_again).start()
    else:
        raise KeyboardInterrupt


def _interrupt_again() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(_MAIN_THREAD, signal.SIGINT)
