"""A folder that is being made: beside its final place, locked while a process works on it, removed if that fails."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lm import files, locks

_SECONDS_TO_LOCK = 60
"""A folder this old that nobody has locked is abandoned; a new one may be about to be locked."""


@contextlib.contextmanager
def partial_folder(place: Path) -> Iterator[Path]:
    """An empty folder beside `place`, to be filled and renamed; it is removed at the end unless it was renamed."""
    partial = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
    files.make_folder(place.absolute().parent)
    partial.mkdir()
    try:
        with _locked(partial):  # or not, on a file system without locks
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def put_in_place(partial: Path, folder: Path, *, is_there: Callable[[], bool]) -> None:
    """Give a complete folder its name; a folder that has the name is removed.

    Args:
        partial: the complete folder, from `partial_folder`.
        folder: the name.
        is_there: tells whether another process was faster; nothing is renamed then.
    """
    files.sync(partial)
    if is_there():
        return
    replaced = partial.with_name(partial.name + "-replaced")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(replaced)
    partial.rename(folder)
    files.sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove the partial folders that killed processes left in a folder, of one name or of all.

    A lock ends with the process that holds it, however that ends, and is seen from containers and by other users. On a
    file system without locks nothing is removed.
    """
    newest = time.time() - _SECONDS_TO_LOCK
    for partial in folder.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # just gone, or somebody else's
            if partial.is_dir() and partial.stat().st_mtime < newest:
                with _locked(partial) as abandoned:
                    if abandoned:
                        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, if no other process does and the file system has locks; gives whether it is held."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        return locks.lock(descriptor)
    except BlockingIOError:
        return False
