"""Folders of prepared data: written once, atomically, and found again by a hash of what they were made from.

A folder is filled beside its place, locked while a process works on it, its manifest last, and renamed when it is
complete; if that fails it is removed. So a folder with its name is complete whatever happens to the process, and
processes that prepare the same data at the same time end with one folder. Work that takes long leaves its finished
chunks in another such folder, which stays until all is done.

Checksums in the manifest show what happens to the files later. A few megabytes are hashed each time they are opened.
Hashing takes a second per gigabyte or two, and longer from a slow disk, so for more the cache remembers that a folder
was verified: as long as no file has another size, time of modification or of change, or inode, it isn't hashed again.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lm import files, locks, processes
from lm.corpus.manifest import MANIFEST, PreparedManifest, has_manifest
from lm.errors import InputError
from lm.files import cache_root

_SECONDS_TO_LOCK = 60
"""A folder this old that nobody has locked is abandoned; a new one may be about to be locked."""

_SECONDS_TO_RESUME = 14 * 24 * 3600
"""Finished parts this old are abandoned where nobody knows their place by name, as in a cache."""


@contextlib.contextmanager
def partial_folder(place: Path) -> Iterator[Path]:
    """An empty folder beside `location`, to be filled and renamed; it is removed at the end unless it was renamed."""
    partial = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
    files.make_folder(place.absolute().parent)
    partial.mkdir()
    try:
        with _locked(partial):  # or not, on a file system without locks
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def resumable_folder(place: Path) -> Iterator[Path]:
    """A folder beside `location` for finished parts of what will be there.

    After an interruption or an error it stays, unless it is empty, so that work can be resumed; else it is removed at
    the end. While another process has it locked, an empty folder takes its place, which does not stay.
    """
    folder = _parts_folder(place)
    files.make_folder(folder.absolute())
    with locks.opened_folder(folder) as descriptor:
        try:
            if _try_lock(folder, descriptor):
                yield folder
                shutil.rmtree(folder, ignore_errors=True)
            else:
                with partial_folder(place) as own:
                    yield own
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _try_lock(folder: Path, descriptor: int) -> bool:
    """Lock a folder, on a file system with locks; false if another process has, or has just removed it."""
    try:
        locks.lock(descriptor)
        return locks.is_still(folder, descriptor)
    except (BlockingIOError, FileNotFoundError):
        return False


def rename_into_place(partial: Path, folder: Path, *, is_there: Callable[[], bool]) -> None:
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
        _remove_old(folder.glob(".*.parts"), _SECONDS_TO_RESUME)


def remove_leftover_parts(place: Path) -> None:
    """Remove the finished parts of what is complete by now, which a process that was killed just then has left."""
    _remove_old([_parts_folder(place)], 0)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be; InputError if one is in it."""
    files.make_folder(folder.absolute())
    with locks.opened_folder(folder) as descriptor:
        if not _try_lock(folder, descriptor):
            raise InputError(f"{folder}: another process is at work on it; wait for its end")
        yield


def _parts_folder(place: Path) -> Path:
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


KEY_VERSION = 1
"""Of what keys are made of: raised when the same inputs become other data."""

M = TypeVar("M", bound=PreparedManifest)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedFolder(Generic[M]):
    """A folder of prepared data.

    Attributes:
        folder: where it is.
        manifest: what it holds.
        reused: whether it was there already.
        chunks_found: how many of its chunks were there already, after an interruption.
    """

    folder: Path
    manifest: M
    reused: bool
    chunks_found: int = 0


@dataclass(frozen=True)
class Preparation(Generic[M]):
    """How data of some kind are made of certain inputs.

    Attributes:
        key: a hash of the inputs (see `hash_inputs`).
        read: gives the manifest of a complete folder; raises InputError for any other.
        write: writes all files but the manifest into an empty folder; gives the manifest.
    """

    key: str
    read: Callable[[Path], M]
    write: Callable[[Path], M]

    def check(self, folder: Path) -> M | None:
        """The manifest of a folder; None if there is none, or of other inputs; InputError if the data are damaged."""
        if not has_manifest(folder):
            return None
        manifest = self.read(folder)
        if manifest.key != self.key:
            return None
        verify_checksums(folder, manifest.sha256)
        return manifest

    def find(self, folder: Path) -> M | None:
        """The manifest of a folder, if it is complete, undamaged, and was made of the same inputs."""
        try:
            return self.check(folder)
        except InputError:
            return None

    def load_or_prepare(self, folder: Path) -> PreparedFolder[M]:
        """The data in a folder: found there, or made now in place of what else it holds."""
        try:
            there = self.check(folder)
        except InputError as error:
            there = None
            _LOG.warning("%s (done now)", error)
        if there is not None:
            return PreparedFolder(folder, there, reused=True)
        place = folder.resolve()  # so that a link stays one
        with partial_folder(place) as partial:
            made = self.write(partial)
            for file in partial.iterdir():
                files.sync(file)
            made = made.with_checksums(compute_checksums(partial))
            files.write_json(partial / MANIFEST, made.to_dict())
            rename_into_place(partial, place, is_there=lambda: self.find(place) is not None)
        return PreparedFolder(folder, made, reused=False)

    def load_or_prepare_in_cache(self, kind: str, *, root: Path | None = None) -> PreparedFolder[M]:
        """The data in the folder of the cache that is named after their key: found there, or made now.

        Args:
            kind: the folder in the cache that has a folder for each key.
            root: the cache [default: `cache_root()`].
        """
        return self.load_or_prepare(cache_folder(kind, self.key, root=root))


def cache_folder(kind: str, key: str, *, root: Path | None = None) -> Path:
    """The folder of the cache for data with a key, which need not exist; what was abandoned beside it is removed."""
    folder = (root or cache_root()) / kind / key[:32]
    remove_abandoned(folder.parent)
    return folder


def hash_inputs(*inputs: Any) -> str:  # noqa: ANN401 (whatever JSON can hold)
    """A hash of all inputs that prepared data depend on: contents of files, not their names or times."""
    return hashlib.sha256(json.dumps([KEY_VERSION, *inputs]).encode()).hexdigest()


_HASHED_EACH_TIME = 1 << 26
"""Bytes: folders up to this size are hashed each time, which takes a tenth of a second or two."""


def compute_checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, by name."""
    return _hash_files(sorted(folder.iterdir()))


def verify_checksums(
    folder: Path,
    sha256: Mapping[str, str] | None,
    *,
    advice: str = "prepare the corpus again",
    settings: Sequence[str] = (),
) -> None:
    """InputError if a file of a folder is missing or has another checksum; no checksums, as of old folders, are fine.

    Args:
        folder: of prepared data.
        sha256: of each file, by name.
        advice: what to do about it, for the message.
        settings: those that do it.
    """
    if sha256 is None:
        return
    try:
        state = {name: _file_state(folder / name) for name in sha256}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; {advice}", settings=settings) from None
    is_large = sum(size for size, *_ in state.values()) > _HASHED_EACH_TIME
    verified = {"folder": str(folder.resolve()), "sha256": dict(sha256), "files": state}
    record = _verification_record(folder)
    if is_large and _read_record(record) == verified:
        return
    found = _hash_files([folder / name for name in sha256])
    if wrong := [name for name in sha256 if found[name] != sha256[name]]:
        raise InputError(
            f"{folder / wrong[0]}: damaged (its checksum is not that of the file as it was made); {advice}",
            settings=settings,
        )
    if is_large:
        with contextlib.suppress(OSError, InputError):  # the cache cannot be written to: it is hashed again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(record, verified)


def _file_state(path: Path) -> list[int]:
    """What changes with each way of writing to a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _verification_record(folder: Path) -> Path:
    """The file that remembers when a folder was verified."""
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return files.cache_root() / "verified" / f"{digest[:32]}.json"


def _read_record(record: Path) -> Any:  # noqa: ANN401 (whatever the file holds)
    try:
        return files.read_json(record)
    except (InputError, OSError):
        return None


def _hash_files(paths: list[Path]) -> dict[str, str]:
    """The SHA-256 of files, several at a time."""
    found = processes.on_threads(files.sha256, paths, threads=processes.cores())
    return dict(zip((path.name for path in paths), found, strict=True))
