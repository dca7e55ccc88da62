"""Whether compiled code is there, for this processor, and worth loading."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

from lm import files
from lm.errors import InputError
from lm.locks import LockFile

_FOLDERS = ("kernels", "engine/compiled")
_LIST, SUFFIX = "compiled.json", ".nbc"
"""The file that names those of compiled functions, and how their names end."""
_WAIT = 0.1
"""Seconds between two looks at whether another process has compiled everything."""

_is_saving = False
_pool = threading.Lock()


def is_ready() -> bool:
    """Whether all was compiled for the processor of this machine and is as it was written, or is being compiled."""
    return _is_saving or (is_compiled() and _is_intact())


@cache
def initialise() -> None:
    """Have what is compiled from now on come from the cache, and go there; begin the threads.

    Threads otherwise begin when code is loaded that could use them. They may be threads of the very OpenMP that torch
    has: beginning them changes how many torch takes, which is put right.
    """
    import numba

    numba.config.CACHE_DIR = str(code_folder())
    taken = torch.get_num_threads()
    try:
        numba.set_num_threads(1)
    except ValueError:  # the environment names a threading layer that can't be loaded
        numba.config.THREADING_LAYER = "default"
        numba.set_num_threads(1)
    torch.set_num_threads(taken)


def sync_threads() -> int:
    """How many threads compiled code takes: as many as torch."""
    import numba

    taken = torch.get_num_threads()
    if taken > 1:
        numba.set_num_threads(min(taken, numba.config.NUMBA_NUM_THREADS))
    return taken


def exclusive(threads: int) -> AbstractContextManager[object]:
    """To be held while compiled code works with so many threads.

    numba's own thread pool, which it falls back to without OpenMP and TBB, ends the process if two threads of Python
    use it at once.
    """
    import numba

    return _pool if threads > 1 and numba.threading_layer() == "workqueue" else nullcontext()


def is_installed() -> bool:
    """Whether there is a compiler: the package numba, which is an extra, and not switched off."""
    return _numba_version() is not None and not is_disabled()


def is_disabled() -> bool:
    """Whether the environment tells numba to compile nothing."""
    try:
        return bool(int(os.environ.get("NUMBA_DISABLE_JIT") or 0))
    except ValueError:  # as numba reads it
        return False


@cache
def is_compiled() -> bool:
    """Whether all was compiled by this numba, from these files, for some processor."""
    try:
        return is_installed() and any(_version_folder().glob(f"*/{_LIST}"))
    except (InputError, OSError):
        return False


def is_saving() -> bool:
    """Whether code is being compiled to be kept, so that not being able to write it is an error."""
    return _is_saving


@contextmanager
def compile_lock() -> Iterator[None]:
    """While open, compiled code is to be written whole; other processes that want to do the same wait.

    Raises:
        InputError: the folder can't be written to.
    """
    global _is_saving  # noqa: PLW0603 (numba is loaded for a process)
    if is_ready():
        yield
        return
    folder = code_folder()
    try:
        files.make_folder(folder)
    except InputError as error:
        raise InputError(f"{error} (LM_CACHE)") from None
    lock = LockFile(folder / "lock")
    while not _try_lock(lock):
        time.sleep(_WAIT)
    _is_saving = True
    try:
        with files.naming(folder):
            yield
            write_file_list()
    finally:
        _is_saving = False
        lock.release()


def write_file_list() -> None:
    """List the files that were compiled for this processor; what is damaged among them goes."""
    folder = code_folder()
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(folder.rglob(f"*{SUFFIX}"))
    whole = [path for path in found if has_valid_checksum(path)]
    for path in {*found} - {*whole}:
        path.unlink(missing_ok=True)
    files.write_json(folder / _LIST, {"files": [path.relative_to(folder).as_posix() for path in whole]})
    clear_cached_state()


def append_checksum(data: bytes) -> bytes:
    """Data to be written to a file, and their checksum, which no reader of a pickle comes to."""
    return data + hashlib.sha256(data).digest()


def has_valid_checksum(path: Path) -> bool:
    """Whether a file ends with the checksum of what comes before."""
    try:
        data = memoryview(path.read_bytes())
    except (OSError, ValueError):
        return False
    size = hashlib.sha256().digest_size
    return len(data) > size and hashlib.sha256(data[:-size]).digest() == data[-size:]


def clear_cached_state() -> None:
    """Ask again whether code is there, and where."""
    for answer in (_version_folder, is_compiled, _is_intact):
        answer.cache_clear()


def code_folder() -> Path:
    """Where machine code for this processor is kept: several that share a home have a folder each."""
    return _version_folder() / hashlib.sha256(target_cpu().encode()).hexdigest()[:16]


@cache
def _version_folder() -> Path:
    """Where machine code is kept that this numba makes of these files.

    Functions are compiled with those that they call, so that any file may change what becomes of any function.
    """
    root = Path(__file__).parents[1]
    sources = sorted(file for folder in _FOLDERS for file in (root / folder).glob("*.py"))
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sources]
    described = repr((_numba_version(), sys.version_info[:2], stamps))
    return files.cache_root() / "native" / hashlib.sha256(described.encode()).hexdigest()[:16]


@cache
def _is_intact() -> bool:
    """Whether all files that were compiled for this processor are there, as they were written."""
    folder = code_folder()
    try:
        return all(has_valid_checksum(folder / name) for name in files.read_json(folder / _LIST)["files"])
    except (InputError, OSError, TypeError, KeyError):  # the list itself is damaged
        return False


def _try_lock(lock: LockFile) -> bool:
    try:
        lock.acquire()
    except BlockingIOError:
        return False
    return True


def target_cpu() -> str:
    """The one that code is compiled for: its name and what it can do, in the compiler's terms."""
    from llvmlite import binding

    told = (os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES"))  # as numba has it; tests set them
    found = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    return " ".join(mine or its for mine, its in zip(told, found, strict=True))


def _numba_version() -> str | None:
    try:
        return importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return None
