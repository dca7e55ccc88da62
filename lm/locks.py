"""File locks between processes; released when the process ends. Some file systems have none."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder without waiting; returns False if the file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # missing, or no permission
        return False
    try:
        try_lock(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
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
            try_lock(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None
