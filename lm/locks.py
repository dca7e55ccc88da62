"""Locks between processes. One ends with the process that holds it, however that ends; some systems have none."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # elsewhere
    msvcrt = None  # type: ignore[assignment]

_LOCKED_BYTE = (1 << 31) - 2
"""Where Windows locks a file: no other process can read or write there, so it is far behind the end of the file."""


def lock(descriptor: int) -> bool:
    """Lock an open file or folder; returns whether that worked: without locks, on some file systems, it does not.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if fcntl is None:
        return msvcrt is not None and _lock_on_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return False
    return True


def _lock_on_windows(descriptor: int) -> bool:
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except PermissionError:
        raise BlockingIOError from None
    except OSError:  # a file system without locks
        return False
    finally:
        os.lseek(descriptor, at, os.SEEK_SET)
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has locked a file just now."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # there is none, or it is somebody else's
        return False
    try:
        lock(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Open a folder to lock it; on Windows, which opens no folders, a file beside it, which is removed at the end.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    beside, there = None, folder.resolve(strict=True)
    if os.name == "nt":
        beside = there.parent / f".{there.name.removeprefix('.')}.locked"
    descriptor = os.open(folder, os.O_RDONLY) if beside is None else os.open(beside, os.O_RDWR | os.O_CREAT)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        if beside is not None:
            with contextlib.suppress(OSError):  # another process has it open
                beside.unlink()


def is_still(folder: Path, descriptor: int) -> bool:
    """Whether a folder is the one that was opened, not another one of this name; FileNotFoundError if it is gone."""
    found = folder.stat()
    return os.name == "nt" or os.path.samestat(found, os.fstat(descriptor))


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
