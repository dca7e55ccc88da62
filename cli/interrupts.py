"""Ctrl-C during an import, which would leave modules half initialised, or in a finaliser, which would drop it."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


def defer_interrupts() -> None:
    """Delay Ctrl-C until the import or finaliser in progress is complete; otherwise it has its usual effect."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    caller = _find_caller(frame)
    if caller is None:
        raise KeyboardInterrupt
    # The frame is traced, so that it is interrupted when it continues: torch drops exceptions in imports by its C code.
    caller.f_trace = _interrupt_traced
    sys.settrace(_ignore_call)


def _find_caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame that began the outermost import or finaliser in progress; None without one."""
    caller = None
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM or frame.f_code.co_name == "__del__":
            caller = frame.f_back
        frame = frame.f_back
    return caller


def _interrupt_traced(_frame: FrameType, _event: str, _value: Any) -> None:  # noqa: ANN401 (as sys.settrace asks)
    raise KeyboardInterrupt  # which ends tracing


def _ignore_call(_frame: FrameType, _event: str, _value: Any) -> None:  # noqa: ANN401 (as sys.settrace asks)
    """Trace no further frame."""
