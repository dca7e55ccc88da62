"""Folders of prepared data: written atomically, verified by checksums, and found by a hash of their inputs.

A folder is filled under a temporary name, locked meanwhile, its manifest last, and then renamed; after a failure it is
removed. So a folder with its name is complete, and processes that prepare the same data concurrently end with one
folder. Long preparations keep finished chunks in a second folder, so that they can be resumed.

The manifest has SHA-256 checksums. Up to 64 MiB are hashed on each opening. For more, which takes a second per one or
two gigabytes, the cache records that a folder was verified; it isn't hashed again while sizes, times and inodes of its
files are unchanged.
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
from lm.corpus.manifest import MANIFEST, PreparedManifest, SourceRecord, has_manifest
from lm.errors import InputError
from lm.files import cache_root
from lm.text.compression import detect_compression, read_blocks

_SECONDS_TO_LOCK = 60
"""An unlocked folder of this age is abandoned; a newer one may be about to be locked."""

_SECONDS_TO_RESUME = 14 * 24 * 3600
"""Age of finished parts in a cache that counts as abandoned."""


@contextlib.contextmanager
def partial_folder(destination: Path) -> Iterator[Path]:
    """Create an empty folder beside `destination`, to be filled and renamed; it is removed unless renamed."""
    partial = destination.with_name(f".{destination.name}.partial-{secrets.token_hex(4)}")
    files.make_folder(destination.absolute().parent)
    partial.mkdir()
    try:
        with _locked(partial):  # or not, on a file system without locks
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def resumable_folder(destination: Path) -> Iterator[Path]:
    """Create or reuse a folder beside `destination` for finished parts.

    After an interruption or error it stays, unless it is empty, so that work can be resumed; else it is removed. While
    another process holds its lock, a temporary empty folder is used instead.
    """
    folder = _parts_folder(destination)
    files.make_folder(folder.absolute())
    with locks.open_folder_for_locking(folder) as descriptor:
        try:
            if _try_lock(folder, descriptor):
                yield folder
                shutil.rmtree(folder, ignore_errors=True)
            else:
                with partial_folder(destination) as own:
                    yield own
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _try_lock(folder: Path, descriptor: int) -> bool:
    """Lock a folder; False if another process holds the lock or has just removed the folder."""
    try:
        locks.try_lock(descriptor)
        return locks.is_same_folder(folder, descriptor)
    except (BlockingIOError, FileNotFoundError):
        return False


def rename_into_place(partial: Path, folder: Path, *, is_there: Callable[[], bool]) -> None:
    """Rename a complete folder to its final name, replacing a folder with that name.

    Args:
        partial: the complete folder, from `partial_folder`.
        is_there: returns whether another process was faster; then nothing is renamed.
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
    """Remove partial folders left by killed processes, of one name or of all.

    Locks end with their process, and work across containers and users. Without file locks nothing is removed. Without a
    name, finished parts are also removed once they are two weeks old.
    """
    _remove_old(folder.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"), _SECONDS_TO_LOCK)
    if name is None:
        _remove_old(folder.glob(".*.parts"), _SECONDS_TO_RESUME)


def remove_leftover_parts(destination: Path) -> None:
    """Remove the finished parts of a folder that is complete."""
    _remove_old([_parts_folder(destination)], 0)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create and lock a folder; InputError if another process holds the lock."""
    files.make_folder(folder.absolute())
    with locks.open_folder_for_locking(folder) as descriptor:
        if not _try_lock(folder, descriptor):
            raise InputError(f"{folder}: another process is writing it; wait until it ends")
        yield


def _parts_folder(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.parts")


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
    """Hold the lock of a folder if possible; yields whether it is held."""
    with locks.open_folder_for_locking(folder) as descriptor:
        yield _lock(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        return locks.try_lock(descriptor)
    except BlockingIOError:
        return False


KEY_VERSION = 3
"""Version of the keys; incremented when the same inputs give other data."""

M = TypeVar("M", bound=PreparedManifest)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedFolder(Generic[M]):
    """A folder of prepared data.

    Attributes:
        chunks_reused: how many of its chunks existed already, after an interruption.
    """

    folder: Path
    manifest: M
    reused: bool
    chunks_reused: int = 0


@dataclass(frozen=True)
class Preparation(Generic[M]):
    """How to prepare data from certain inputs.

    Attributes:
        key: hash of the inputs (`hash_inputs`).
        read: returns the manifest of a complete folder; raises InputError for any other.
        write: writes all files but the manifest into an empty folder; returns the manifest.
    """

    key: str
    read: Callable[[Path], M]
    write: Callable[[Path], M]

    def check(self, folder: Path) -> M | None:
        """Return the manifest of a folder; None if missing or of other inputs; InputError if the data are damaged."""
        if not has_manifest(folder):
            return None
        manifest = self.read(folder)
        if manifest.key != self.key:
            return None
        verify_checksums(folder, manifest.sha256)
        return manifest

    def find(self, folder: Path) -> M | None:
        """Return the manifest of a complete, undamaged folder with the same inputs; else None."""
        try:
            return self.check(folder)
        except InputError:
            return None

    def load_or_prepare(self, folder: Path) -> PreparedFolder[M]:
        """Load the data in a folder, or prepare them, replacing what the folder holds."""
        try:
            complete = self.check(folder)
        except InputError as error:
            complete = None
            _LOG.warning("%s (done now)", error)
        if complete is not None:
            return PreparedFolder(folder, complete, reused=True)
        destination = folder.resolve()  # so that a link stays one
        with partial_folder(destination) as partial:
            manifest = self.write(partial)
            for file in partial.iterdir():
                files.sync(file)
            manifest = manifest.with_checksums(compute_checksums(partial))
            files.write_json(partial / MANIFEST, manifest.to_dict())
            rename_into_place(partial, destination, is_there=lambda: self.find(destination) is not None)
        return PreparedFolder(folder, manifest, reused=False)

    def load_or_prepare_in_cache(self, kind: str, *, root: Path | None = None) -> PreparedFolder[M]:
        """Load or prepare the data in the cache folder named after their key.

        Args:
            kind: the subfolder of the cache.
            root: the cache [default: `cache_root()`].
        """
        return self.load_or_prepare(cache_folder(kind, self.key, root=root))


def cache_folder(kind: str, key: str, *, root: Path | None = None) -> Path:
    """Return the cache folder for a key, which need not exist; removes abandoned folders beside it."""
    folder = (root or cache_root()) / kind / key[:32]
    remove_abandoned(folder.parent)
    return folder


def hash_inputs(*inputs: Any) -> str:
    """Hash everything that prepared data depend on: contents of files, not names or times."""
    return hashlib.sha256(json.dumps([KEY_VERSION, *inputs]).encode()).hexdigest()


_HASHED_EACH_TIME = 1 << 26
"""Bytes: folders up to this size are hashed each time, which takes a tenth of a second or two."""


def compute_checksums(folder: Path) -> dict[str, str]:
    return _hash_files(sorted(folder.iterdir()))


def verify_checksums(
    folder: Path,
    sha256: Mapping[str, str],
    *,
    advice: str = "prepare the corpus again",
    settings: Sequence[str] = (),
) -> None:
    """Raise InputError if a file is missing or has another checksum."""
    try:
        state = {name: _file_state(folder / name) for name in sha256}
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; {advice}", settings=settings) from None
    is_large = sum(size for size, *_ in state.values()) > _HASHED_EACH_TIME
    verified = {"folder": str(folder.resolve()), "sha256": dict(sha256), "files": state}
    record = _verification_record(folder)
    if is_large and _read_record(record) == verified:
        return
    hashes = _hash_files([folder / name for name in sha256])
    if wrong := [name for name in sha256 if hashes[name] != sha256[name]]:
        raise InputError(
            f"{folder / wrong[0]}: damaged (its checksum differs from the recorded one); {advice}",
            settings=settings,
        )
    if is_large:
        with contextlib.suppress(OSError, InputError):  # the cache cannot be written to: it is hashed again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(record, verified)


def list_changed_sources(folder: Path) -> list[str]:
    """Return the files that prepared data were made from and that differ now; not those that are gone.

    Sizes are compared, and checksums of files that are newer than the manifest, up to 64 MiB each.
    """
    manifest, made_at = PreparedManifest.read(folder), (folder / MANIFEST).stat().st_mtime_ns
    records = (*manifest.sources, *manifest.validation_sources)
    return [record.path for record in records if _has_changed(record, made_at=made_at)]


def _has_changed(record: SourceRecord, *, made_at: int) -> bool:
    """Return whether a source file has changed since a time, in nanoseconds; False if it is gone or unreadable."""
    path = Path(record.path)
    with contextlib.suppress(OSError, InputError):
        compression, status = detect_compression(path, path.name), path.stat()
        if compression is None and status.st_size != record.size:
            return True
        if status.st_mtime_ns > made_at and status.st_size <= _HASHED_EACH_TIME:
            digest = hashlib.sha256()
            for block in read_blocks(path, compression, _HASHED_EACH_TIME, name=path.name):
                digest.update(block)
            return digest.hexdigest() != record.sha256
    return False


def _file_state(path: Path) -> list[int]:
    """Return what changes with every write to a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _verification_record(folder: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return files.cache_root() / "verified" / f"{digest[:32]}.json"


def _read_record(record: Path) -> Any:
    try:
        return files.read_json(record)
    except (InputError, OSError):
        return None


def _hash_files(paths: list[Path]) -> dict[str, str]:
    hashes = processes.map_on_threads(files.sha256, paths, threads=processes.available_cores())
    return dict(zip((path.name for path in paths), hashes, strict=True))
