"""When the command began, for what counts from there."""

from __future__ import annotations

import time
from types import SimpleNamespace

_COMMAND = SimpleNamespace(began=time.monotonic())
_PROCESS_BEGAN = time.monotonic() - time.process_time()  # about: starting Python and reading this far was work


def begin(*, with_process: bool = False) -> None:
    """A command begins now, or began with the process that is there for it."""
    _COMMAND.began = _PROCESS_BEGAN if with_process else time.monotonic()


def elapsed() -> float:
    """Seconds since the command began."""
    return time.monotonic() - float(_COMMAND.began)
