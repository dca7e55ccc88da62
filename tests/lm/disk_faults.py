"""Everything that some code does to the files below a folder: as it is after each operation, or with one that fails.

The files as they are before an operation are what a process leaves that is killed there, since what is in the buffers
of Python is lost with it and what the system was given is not. So one execution shows the effect of every kill;
`training/test_crashes.py` compares with processes that are really killed.
"""

import builtins
import errno
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lm import checkpoint, run_folder

_CALLS = ("fsync", "rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink", "chmod", "truncate")
_TAKE_ROOM = ("fsync", "rename", "replace", "mkdir", "link", "symlink", "create", "write", "close", "save_file")
"""Operations that need room on the disk."""


class Disk:
    """The operations on files while it watches; subclasses say what happens before one.

    Attributes:
        operations: the names of those so far.
    """

    def __init__(self, root: Path) -> None:
        self.operations: list[str] = []
        self._root, self._within = root, False
        self._lock = threading.RLock()  # a checkpoint is written on a thread

    def before(self, operation: str) -> None:
        """Called before each operation, and once after the last one."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self._noting(name, getattr(os, name)))
            opened = self._opening(io.open)
            patch.setattr(io, "open", opened)
            patch.setattr(builtins, "open", opened)
            patch.setattr(os, "open", self._opening_descriptor(os.open))
            patch.setattr(checkpoint, "save_file", self._saving(checkpoint.save_file))
            yield
            self._within = True
            self.before("end")

    def note(self, operation: str) -> None:
        if not self._within:  # not of what `before` does itself
            self.operations.append(operation)
            self._within = True
            try:
                self.before(operation)
            finally:
                self._within = False

    def _noting(self, name: str, real: Callable) -> Callable:
        def call(*arguments, **options):
            with self._lock:
                self.note(name)
                return real(*arguments, **options)

        return call

    def _opening(self, real: Callable) -> Callable:
        def opening(file, mode="r", *arguments, **options):
            if isinstance(file, int) or not set(mode) & set("wax+") or not self._is_below(file):
                return real(file, mode, *arguments, **options)
            with self._lock:
                self.note("create")
                return _Written(real(file, mode, *arguments, **options), self)

        return opening

    def _opening_descriptor(self, real: Callable) -> Callable:
        def opening(path, flags, *arguments, **options):
            with self._lock:
                if flags & os.O_CREAT and self._is_below(path):
                    self.note("create")
                return real(path, flags, *arguments, **options)

        return opening

    def _is_below(self, path) -> bool:
        return self._root in Path(path).absolute().parents

    def _saving(self, real: Callable) -> Callable:
        def save_file(values, path, metadata=None):
            with self._lock:
                self.note("save_file")
                real(values, path, metadata)
                whole = Path(path).stat().st_size
                content = Path(path).read_bytes()
                os.truncate(path, whole // 2)
                with Path(path).open("ab") as file:
                    file.write(content[whole // 2 :])

        return save_file


class _Written:
    """A file of which each write comes to the disk in two halves, the second one when the file is closed."""

    def __init__(self, file, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, content) -> int:
        with self._disk._lock:
            half = len(content) // 2
            self._disk.note("write")
            self._file.write(content[:half])
            self._file.flush()
            self._file.write(content[half:])
        return len(content)

    def close(self) -> None:
        with self._disk._lock:
            if not self._file.closed:
                try:
                    self._disk.note("close")
                finally:
                    self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __getattr__(self, name: str):
        return getattr(self._file, name)


class States(Disk):
    """Keeps a copy of the folder as it is before each operation, unless it is as it was before an earlier one.

    Without `each`, nothing that recovery ignores makes a difference: the contents of temporary files and of folders
    that are being removed, an incomplete line of a log, and the log of times.

    Attributes:
        found: the copies.
        at: for each operation and for the end, the copy of the folder before it.
    """

    def __init__(self, root: Path, copies: Path, *, each: bool = True) -> None:
        super().__init__(root)
        self.at: list[Path] = []
        self._copies, self._each, self._seen = copies, each, {}

    @property
    def found(self) -> list[Path]:
        return list(self._seen.values())

    def before(self, operation: str) -> None:
        state = frozenset(self._state_of(path) for path in self._root.rglob("*"))
        if state not in self._seen:
            copy = self._copies / f"{len(self.at):04d}-{operation}"
            self._seen[state] = copy_tree(self._root, copy, pid=os.getpid())
        self.at.append(self._seen[state])

    def _state_of(self, path: Path) -> tuple:
        parts = path.relative_to(self._root).parts
        if not self._each:
            temporary = [part.endswith((f".{os.getpid()}", ".removed")) for part in parts]
            if any(temporary):
                return parts[: temporary.index(True) + 1]
            if path.suffix == ".jsonl":
                return (*parts, 0 if path.name == run_folder.TIMINGS else path.read_bytes().count(b"\n"))
        found = path.stat()
        return (*parts, *((found.st_ino, found.st_size, found.st_mtime_ns) if path.is_file() else ()))


class Fails(Disk):
    """Has the operation of a number fail as on a full disk, and all after it that need room, if it `stays` full."""

    def __init__(self, root: Path, number: int, *, stays: bool) -> None:
        super().__init__(root)
        self._number, self._stays, self.failed = number, stays, False

    def before(self, operation: str) -> None:
        after = len(self.operations) - 1 - self._number
        if operation != "end" and (after == 0 or (after > 0 and self._stays and operation in _TAKE_ROOM)):
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Dies(Disk):
    """Ends the process before the operation of a number, with all that Python has not yet given to the system."""

    STATUS = 9

    def __init__(self, root: Path, number: int) -> None:
        super().__init__(root)
        self._number = number

    def before(self, operation: str) -> None:
        if len(self.operations) - 1 == self._number and operation != "end":
            os._exit(self.STATUS)


def copy_tree(folder: Path, copy: Path, *, pid: int) -> Path:
    """Copy a folder, with the temporary files of a process named as those of another one, which is gone."""
    shutil.copytree(folder, copy)
    for path in sorted(copy.rglob(f".*.{pid}"), reverse=True):
        path.rename(path.with_name(path.name.removesuffix(str(pid)) + "1"))
    return copy


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder: of files their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
