"""Atomic file writes, checksums, JSON and the cache folder."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from lm.errors import InputError


def read_json(path: Path) -> Any:
    """Read a JSON file; InputError if it is missing or invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def to_json(values: object, *, indent: int | None = None) -> str:
    """Serialise values as JSON, with null for NaN and infinity."""
    finite = json.loads(json.dumps(values), parse_constant=lambda _: None)
    return json.dumps(finite, indent=indent, ensure_ascii=False)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    replace_text(path, to_json(values, indent=2) + "\n")


@contextlib.contextmanager
def with_path_in_errors(path: Path) -> Iterator[None]:
    """Within the context, OSErrors without a file name get this one."""
    try:
        yield
    except OSError as error:
        if error.errno:  # not of a library's message
            error.filename = error.filename or str(path)
        raise


def check_folder(folder: Path) -> None:
    """Raise InputError unless a folder can be written to or created."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: {existing} is no folder that can be written to")


def make_folder(folder: Path) -> None:
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)


def check_writable(path: Path) -> None:
    """Raise InputError if no file can be written to a path; call it before long work."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file to write")
    if path.is_file() or not path.exists():
        check_folder(path.resolve().parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder that is renamed to `path` when the block succeeds, else removed.

    What is written is synced before, so that after a crash there is the old or the new one, complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with with_path_in_errors(path):
            yield fresh
        for written in [*fresh.iterdir(), fresh] if fresh.is_dir() else [fresh]:
            sync(written)
        fresh.replace(path)
        sync(path.parent)
    finally:
        if fresh.is_dir():
            shutil.rmtree(fresh, ignore_errors=True)
        fresh.unlink(missing_ok=True)  # rename does nothing if both names are links of one file


@contextlib.contextmanager
def atomic_new(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a new file or folder; see `replacing`.

    Raises:
        InputError: the path exists and is no empty folder, or cannot be written to.
    """
    path = path.resolve()
    check_folder(path.parent)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{path}: already exists; choose a new name or an empty folder")
    with replacing(path) as fresh:
        yield fresh


@contextlib.contextmanager
def atomic_write_bytes(path: Path, mode: str = "wb", **how: Any) -> Iterator[Any]:
    """Yield a file that atomically replaces `path` when the block succeeds.

    Symbolic links are followed. Devices and pipes are written in place.

    Raises:
        InputError: the path is a folder, or cannot be written to.
    """
    check_writable(path)
    if path.exists() and not path.is_file():  # a device or a pipe
        with with_path_in_errors(path), path.open(mode, **how) as file:
            yield file
        return
    path = path.resolve()
    with replacing(path) as fresh:
        with fresh.open(mode, **how) as file:
            yield file
        if path.exists():
            shutil.copymode(path, fresh)


atomic_write_text = functools.partial(
    atomic_write_bytes, mode="w", encoding="utf-8", errors="backslashreplace", newline="\n"
)
"""Like `atomic_write_bytes`, for text."""


def replace_text(path: Path, text: str) -> None:
    with atomic_write_text(path) as file:
        file.write(text)


def link_or_copy(source: Path, path: Path) -> None:
    """Create a hard link, replacing what has the name; a copy if the file system has no hard links."""
    with replacing(path) as fresh:
        try:
            os.link(source.resolve(), fresh)
        except OSError:  # unsupported, across file systems, or no permission
            shutil.copyfile(source, fresh)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_root() -> Path:
    """Return the cache folder: `$LM_CACHE`, else that of the user."""
    return Path(os.environ.get("LM_CACHE") or platformdirs.user_cache_path("lm"))
