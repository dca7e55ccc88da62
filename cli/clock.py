"""When the command began, for what counts from there."""

from __future__ import annotations

import time
from types import SimpleNamespace

_COMMAND = SimpleNamespace(began=time.monotonic())


def begin() -> None:
    """A command begins now."""
    _COMMAND.began = time.monotonic()


def elapsed() -> float:
    """Seconds since the command began."""
    return time.monotonic() - float(_COMMAND.began)
