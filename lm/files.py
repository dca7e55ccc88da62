"""Files that must not be lost: written whole, waited for, and known by their sums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from lm.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


def is_file(name: str | None) -> bool:
    """Whether a word, which may be any text, is the name of a file."""
    with contextlib.suppress(OSError, ValueError):  # too long for a name
        return name is not None and Path(name).is_file()
    return False


def read_json(path: Path) -> Any:  # noqa: ANN401 (whatever the file holds)
    """The contents of a JSON file; InputError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def json_text(values: object, *, indent: int | None = None) -> str:
    """Values as JSON, in which NaN and infinite numbers are null: the format has no such numbers."""
    try:
        return json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(values), indent=indent, ensure_ascii=False, allow_nan=False)


def _without_nan(values: object) -> object:
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {name: _without_nan(value) for name, value in values.items()}
    return [_without_nan(value) for value in values] if isinstance(values, list | tuple) else values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file, and wait until it is on the disk; names of files that are no UTF-8 are escaped."""
    replace_text(path, json_text(values, indent=2) + "\n")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """While open, an OSError names this file: that of a write, as on a full disk, knows no name by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def check_folder(folder: Path) -> None:
    """InputError unless a folder can be written to, or made: what is above it may be a file, or somebody else's."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        problem = "is a file, not a folder" if there == folder else f"cannot be made, since {there} is a file"
        raise InputError(f"{folder}: {problem}; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        problem = "cannot be written to" if there == folder else f"cannot be made, since {there} cannot be written to"
        raise InputError(f"{folder}: {problem}; choose another place")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless it is there; InputError if that cannot be."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}; choose another place") from None


def check_place(path: Path) -> None:
    """InputError if no file can be written at a path, which is better known before long work than after."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file to write")
    if path.is_file() or not path.exists():
        check_folder(path.resolve().parent)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A file to write text to that takes the place of `path` at one stroke once it is whole, and not at all if not.

    A link stays one, and what it leads to is replaced. What cannot be replaced is written to as it stands: a device, a
    pipe, or where standard output goes.

    Raises:
        InputError: it is a folder, or its folder cannot be made or written to.
    """
    with _replaced(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        yield file


@contextlib.contextmanager
def replaced_bytes(path: Path) -> Iterator[BinaryIO]:
    """As `replaced`, for what is no text."""
    with _replaced(path, "wb") as file:
        yield file


@contextlib.contextmanager
def _replaced(path: Path, mode: str, **how: str) -> Iterator[Any]:
    check_place(path)
    if (place := _lasting(path)) is not None:
        with naming(path), open(place, mode, **how) as file:  # type: ignore[call-overload]  # noqa: PTH123 (a descriptor)
            yield file
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), fresh.open(mode, **how) as file:  # type: ignore[call-overload]
            yield file
        sync(fresh)
        if path.exists():
            shutil.copymode(path, fresh)  # after `sync`, for on Windows it may make the file read-only
        fresh.replace(path)
        sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _lasting(path: Path) -> Path | int | None:
    """What to open to write to a path that cannot be replaced by a file; None if it can.

    Standard output and error have an offset of their own in the file they go to, so it is they that are written to.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError):  # it is closed
            if stream is not None and os.path.samestat(status, os.fstat(stream.fileno())):
                stream.flush()
                return os.dup(stream.fileno())
    return None if stat.S_ISREG(status.st_mode) else path


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A place to write a file that takes the name `path` once it is whole, and is not there at all if not.

    Raises:
        InputError: there is something of this name, or its folder cannot be made or written to.
    """
    check_place(path)
    if path.exists():
        raise InputError(f"{path}: is there already; choose a new file", settings=("out",))
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            yield fresh
        sync(fresh)
        fresh.replace(path)
        sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that takes the name `folder` once it is whole, and is not there at all if not.

    Raises:
        InputError: there is a folder of this name that holds anything, or it cannot be made.
    """
    folder = folder.resolve()
    check_folder(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty; choose an empty or a new folder", settings=("out",))
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True)
        with naming(folder):
            yield fresh
        for path in fresh.iterdir():
            sync(path)
        if folder.is_dir():
            folder.rmdir()
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text: a reader finds the old or the new."""
    with replaced(path) as file:
        file.write(text)


def link_or_copy(source: Path, path: Path) -> None:
    """Give a file a second name, which takes the place of what has it; a copy on a file system without hard links."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            try:
                os.link(source.resolve(), fresh)
            except OSError:  # no links here, none between file systems, or the file is somebody else's
                with source.open("rb") as read, fresh.open("wb") as written:  # whose errors name no file
                    shutil.copyfileobj(read, written)
                sync(fresh)
            fresh.replace(path)
            sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)  # it is still there where both names were of one file already


def open_up(path: Path) -> None:
    """Give a file the permissions of any new one."""
    like = path.with_name(f".{path.name}.mode")
    like.touch()
    shutil.copymode(like, path)
    like.unlink()


def sha256(path: Path) -> str:
    """The sum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk.

    Windows opens no folders, and writes the entries of one by itself; and it syncs only what is open for writing.
    """
    on_windows = os.name == "nt"
    if on_windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if on_windows else os.O_RDONLY)
    try:
        sync_open(descriptor)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int) -> None:
    """Wait until an open file is on the disk; on macOS, `fsync` would wait only until it is in the disk's own cache."""
    if fcntl is not None and hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # a file system without it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def cache_root() -> Path:
    """Return the cache folder: `$LM_CACHE`, else `lm` in `$XDG_CACHE_HOME` or in `~/.cache`.

    Raises:
        InputError: there is no home folder.
    """
    if chosen := os.environ.get("LM_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm"
    except RuntimeError:
        raise InputError("this user has no home folder for the cache: set LM_CACHE to another folder") from None


def check_cache() -> None:
    """InputError if nothing can be kept in the cache, which is better known before long work than after."""
    root = cache_root()
    try:
        make_folder(root)
    except InputError as error:
        raise InputError(f"{error} (LM_CACHE)") from None
