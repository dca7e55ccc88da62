"""A folder that is being made: beside its final place, locked while a process works on it, removed if that fails.

What takes long leaves its finished parts in another such folder, which stays until all is done.
"""

from __future__ import annotations

import contextlib
import glob
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lm import files, locks
from lm.errors import InputError

_SECONDS_TO_LOCK = 60
"""A folder this old that nobody has locked is abandoned; a new one may be about to be locked."""

_SECONDS_TO_GO_ON = 14 * 24 * 3600
"""Finished parts this old are abandoned where nobody knows their place by name, as in a cache."""


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


@contextlib.contextmanager
def unfinished_folder(place: Path) -> Iterator[Path]:
    """A folder beside `place` for finished parts of what will be there.

    After an interruption or an error it stays, unless it is empty, so that the work can go on; else it is removed at
    the end. While another process has it locked, an empty folder takes its place, which does not stay.
    """
    folder = _of_parts(place)
    files.make_folder(folder.absolute())
    with locks.opened_folder(folder) as descriptor:
        try:
            if _is_free(folder, descriptor):
                yield folder
                shutil.rmtree(folder, ignore_errors=True)
            else:
                with partial_folder(place) as own:
                    yield own
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _is_free(folder: Path, descriptor: int) -> bool:
    """Lock a folder, on a file system with locks; false if another process has, or has just removed it."""
    try:
        locks.lock(descriptor)
        return locks.is_still(folder, descriptor)
    except (BlockingIOError, FileNotFoundError):
        return False


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
    file system without locks nothing is removed. Of all names, finished parts go too, once they are two weeks old.
    """
    _remove_old(folder.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"), _SECONDS_TO_LOCK)
    if name is None:
        _remove_old(folder.glob(".*.parts"), _SECONDS_TO_GO_ON)


def remove_finished(place: Path) -> None:
    """Remove the finished parts of what is complete by now, which a process that was killed just then has left."""
    _remove_old([_of_parts(place)], 0)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be; InputError if one is in it."""
    files.make_folder(folder.absolute())
    with locks.opened_folder(folder) as descriptor:
        if not _is_free(folder, descriptor):
            raise InputError(f"{folder}: another process is at work on it; wait for its end")
        yield


def _of_parts(place: Path) -> Path:
    return place.with_name(f".{place.name}.parts")


def _remove_old(folders: Iterable[Path], seconds: float) -> None:
    newest = time.time() - seconds
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, PermissionError):  # just gone, or somebody else's
            if folder.is_dir() and folder.stat().st_mtime < newest:
                with _locked(folder) as abandoned:
                    if abandoned:
                        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, if no other process does and the file system has locks; gives whether it is held."""
    with locks.opened_folder(folder) as descriptor:
        yield _lock(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        return locks.lock(descriptor)
    except BlockingIOError:
        return False
