"""Locks between processes. One ends with the process that holds it, however that ends; some systems have none."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


def lock(descriptor: int) -> bool:
    """Lock an open file or folder; returns whether that worked: without locks, on some file systems, it does not.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return False
    return True


class LockFile:
    """A file that is locked while something beside it is worked on; it stays there, and means nothing by itself."""

    def __init__(self, path: Path) -> None:
        """Of this path, in a folder that need not exist yet; nothing is locked so far."""
        self.path = path
        self._close: weakref.finalize[[int], LockFile] | None = None

    def acquire(self) -> None:
        """Lock it, unless this object has done so already; BlockingIOError if another holds it."""
        if self._close is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Let others lock it; they can too once this object is gone."""
        if self._close is not None:
            self._close()
            self._close = None
