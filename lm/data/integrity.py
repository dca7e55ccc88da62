"""Whether the files of prepared data are as they were written, by the checksums in the manifest.

A few megabytes are hashed each time they are opened. Hashing takes a second per gigabyte or two, and longer from a slow
disk, so for more it is remembered, in the cache, that a folder was verified: as long as no file has another size, time
of modification or of change, or inode, it isn't hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lm import files, processes
from lm.errors import InputError

_HASHED_EACH_TIME = 1 << 26
"""Bytes: folders up to this size are hashed each time, which takes a tenth of a second or two."""


def checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, by name."""
    return _hashed(sorted(folder.iterdir()))


def verify(folder: Path, sha256: Mapping[str, str] | None, *, advice: str = "prepare the corpus again") -> None:
    """InputError if a file of a folder is missing or has another checksum; no checksums, as of old folders, are fine.

    Args:
        folder: of prepared data.
        sha256: of each file, by name.
        advice: what to do about it, for the message.
    """
    if sha256 is None:
        return
    try:
        state = {name: _state(folder / name) for name in sha256}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; {advice}") from None
    is_large = sum(size for size, *_ in state.values()) > _HASHED_EACH_TIME
    verified = {"folder": str(folder.resolve()), "sha256": dict(sha256), "files": state}
    record = _record(folder)
    if is_large and _read(record) == verified:
        return
    found = _hashed([folder / name for name in sha256])
    if wrong := [name for name in sha256 if found[name] != sha256[name]]:
        raise InputError(
            f"{folder / wrong[0]}: damaged (its checksum is not that of the file as it was made); {advice}"
        )
    if is_large:
        with contextlib.suppress(OSError, InputError):  # the cache cannot be written to: it is hashed again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(record, verified)


def _state(path: Path) -> list[int]:
    """What changes with each way of writing to a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _record(folder: Path) -> Path:
    """The file that remembers when a folder was verified."""
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return files.cache_root() / "verified" / f"{digest[:32]}.json"


def _read(record: Path) -> Any:  # noqa: ANN401 (whatever the file holds)
    try:
        return files.read_json(record)
    except (InputError, OSError):
        return None


def _hashed(paths: list[Path]) -> dict[str, str]:
    """The SHA-256 of files, several at a time."""
    with ThreadPoolExecutor(max(1, min(processes.cores(), len(paths)))) as pool:
        return dict(zip((path.name for path in paths), pool.map(files.sha256, paths), strict=True))
