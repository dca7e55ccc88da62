"""Files that must not be lost: written whole, waited for, and known by their sums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from lm.errors import InputError


def read_json(path: Path) -> Any:  # noqa: ANN401 (whatever the file holds)
    """The contents of a JSON file; InputError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file and wait until it is on the disk; names of files that are no UTF-8 are escaped."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # as JSON escapes a lone surrogate
    sync(path)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A file to write text to that takes the place of `path` at one stroke once it is whole, and not at all if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            yield file
        sync(fresh)
        fresh.replace(path)
        sync(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text: a reader finds the old or the new."""
    with replaced(path) as file:
        file.write(text)


def sha256(path: Path) -> str:
    """The sum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
