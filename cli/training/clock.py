"""The time since the command began, which is what a budget counts from."""

from __future__ import annotations

import time
from types import SimpleNamespace

_COMMAND = SimpleNamespace(began=time.monotonic())
_PROCESS_BEGAN = time.monotonic() - time.process_time()  # about: starting Python and reading this far was work


def begin(*, with_process: bool = False) -> None:
    """Start the clock now, or set it to when the process began, if that is there for this command alone."""
    _COMMAND.began = _PROCESS_BEGAN if with_process else time.monotonic()


def began() -> float:
    """When the command began, on the clock of `time.monotonic`."""
    return float(_COMMAND.began)


def begin_at(seconds: float) -> None:
    """Set the clock to when the command began that this process works for."""
    _COMMAND.began = seconds


def elapsed() -> float:
    """Seconds since the command began."""
    return time.monotonic() - float(_COMMAND.began)
