"""File locks between processes; released when the process ends. Some file systems have none."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file."""
    lock = LockFile(path)
    try:
        if path.exists():
            lock.acquire()
            lock.release()
    except OSError as error:  # or no permission
        return isinstance(error, BlockingIOError)
    return False


class LockFile:
    """An empty file that is locked to protect what is beside it; the file remains."""

    def __init__(self, path: Path) -> None:
        """Create the lock of a path, whose folder need not exist; nothing is locked yet."""
        self.path = path
        self._close: weakref.finalize[[int], LockFile] | None = None

    def acquire(self) -> None:
        """Acquire the lock; BlockingIOError if another process holds it."""
        if self._close is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # a file system without locks
            pass
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None
