"""What Windows refuses that other systems allow, for modules that ask `os` and `msvcrt` for it."""

import errno
import fcntl
import os
from pathlib import Path
from types import ModuleType

import pytest


class WindowsOs:
    """The module `os`, by whose name a module knows Windows; it opens no folders, and syncs no file open to read."""

    name = "nt"

    def __getattr__(self, name: str):
        return getattr(os, name)

    def open(self, path, flags, *arguments) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return os.open(path, flags, *arguments)

    def fsync(self, descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fsync(descriptor)


class WindowsLocks:
    """The module `msvcrt`: locks bytes of a file, where the descriptor stands, against other descriptors of it."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.places: set[int] = set()

    def locking(self, descriptor: int, mode: int, length: int) -> None:
        assert (mode, length) == (self.LK_NBLCK, 1)
        self.places.add(os.lseek(descriptor, 0, os.SEEK_CUR))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def as_on_windows(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> WindowsLocks:
    """Have modules believe that this is Windows; returns its locks."""
    locks = WindowsLocks()
    for module in modules:
        monkeypatch.setattr(module, "os", WindowsOs())
        monkeypatch.setattr(module, "fcntl", None)
        if hasattr(module, "msvcrt"):
            monkeypatch.setattr(module, "msvcrt", locks)
    return locks
