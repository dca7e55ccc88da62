"""The cache of compiled code: whether it exists for this processor, is intact, and where it is."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from lm import files
from lm.errors import InputError
from lm.locks import LockFile
from lm.signals import delayed_interrupt

_SOURCE_FOLDERS = ("kernels", "engine/compiled")
_FILE_LIST, SUFFIX, _FAILED = "compiled.json", ".nbc", "failed"
"""The file that lists the compiled functions, the suffix of their files, and the file that records a failure."""
_SPEED = "speed.json"
"""The file of the machine's speed."""
DTYPES = ("float32", "int8")
"""The dtypes of weights that are compiled for, in this order."""
_RETRY_SECONDS = 0.1
"""Seconds between attempts to get the lock."""

_is_saving = False
_pool = threading.Lock()


def is_ready(dtype: str = "float32") -> bool:
    """Whether what models with weights of a dtype need is compiled for this processor and intact, or being compiled."""
    return _is_saving or (is_compiled() and dtype in _intact_dtypes())


@cache
def initialise() -> None:
    """Point numba to the code cache, and start its threads.

    Threads otherwise start when parallel code is loaded. They may belong to the OpenMP that torch uses: starting them
    changes torch's number of threads, which is restored.
    """
    import numba

    numba.config.CACHE_DIR = str(code_folder())
    n_threads = torch.get_num_threads()
    try:
        numba.set_num_threads(1)
    except ValueError:  # NUMBA_THREADING_LAYER can't be loaded
        numba.config.THREADING_LAYER = "default"
        numba.set_num_threads(1)
    torch.set_num_threads(n_threads)


def sync_threads() -> int:
    """Set numba's number of threads to torch's, and return it."""
    import numba

    n_threads = torch.get_num_threads()
    if n_threads > 1:
        numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))
    return n_threads


def exclusive(threads: int) -> AbstractContextManager[object]:
    """Return a context manager to hold while compiled code uses `threads` threads.

    numba's own thread pool, the fallback without OpenMP and TBB, aborts the process if two Python threads use it at
    once.
    """
    import numba

    return _pool if threads > 1 and numba.threading_layer() == "workqueue" else nullcontext()


def is_installed() -> bool:
    """Whether numba, an optional dependency, is installed and not disabled."""
    return _numba_version() is not None and not is_disabled()


def is_disabled() -> bool:
    try:
        return bool(int(os.environ.get("NUMBA_DISABLE_JIT") or 0))
    except ValueError:  # as numba reads it
        return False


@cache
def is_compiled() -> bool:
    """Whether at least the code of float32 is compiled by this numba from these sources, for some processor."""
    try:
        return is_installed() and any(_version_folder().glob(f"*/{_FILE_LIST}"))
    except (InputError, OSError):
        return False


def is_complete() -> bool:
    """Whether everything is compiled by this numba from these sources, for some processor."""
    try:
        lists = [files.read_json(path) for path in _version_folder().glob(f"*/{_FILE_LIST}")]
        return any({*DTYPES} <= {*listed["dtypes"]} for listed in lists)
    except (InputError, OSError, TypeError, KeyError):  # a list is damaged
        return False


@dataclass(frozen=True)
class MachineSpeed:
    """The speed of this machine, in CPU time.

    Attributes:
        layer: seconds of a layer in a decode step in PyTorch, besides reading its weights.
        bytes_per_second: weights that PyTorch multiplies by a vector.
        loading: seconds to load compiled code; 0 until the first process has loaded it.
    """

    layer: float
    bytes_per_second: float
    loading: float = 0.0


@cache
def read_speed() -> MachineSpeed | None:
    """Return the speed that was measured when code was compiled for this processor; None if it was not."""
    try:
        return MachineSpeed(**{name: float(value) for name, value in files.read_json(code_folder() / _SPEED).items()})
    except (InputError, OSError, TypeError, ValueError, AttributeError):  # missing or damaged
        return None


def write_speed(speed: MachineSpeed) -> None:
    """Record the speed of this machine, unless the cache is read-only."""
    with suppress(InputError, OSError):
        files.write_json(code_folder() / _SPEED, asdict(speed))
    read_speed.cache_clear()


def is_saving() -> bool:
    """Whether code is being compiled to be saved, so that failing to write is an error."""
    return _is_saving


def create_folder() -> bool | None:
    """Create the folder of this version; return whether it is new, or None if nothing can be saved or compiled here."""
    try:
        folder = _version_folder()
        is_new = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError):
        return None
    return is_new if os.access(folder, os.W_OK) and not (folder / _FAILED).exists() else None


def record_failure() -> None:
    """Record that this version can't be compiled here, so that it is not tried again in the background."""
    with suppress(OSError):
        (_version_folder() / _FAILED).touch()


@contextmanager
def compile_lock(*, waits: bool = True) -> Iterator[None]:
    """Hold the lock for compiling; while another process holds it, wait or raise BlockingIOError.

    Raises:
        InputError: the folder is not writable.
    """
    global _is_saving  # noqa: PLW0603 (numba is loaded for a process)
    if all(map(is_ready, DTYPES)):
        yield
        return
    folder = code_folder()
    try:
        files.make_folder(folder)
    except InputError as error:
        raise InputError(f"{error} (LM_CACHE)") from None
    lock = LockFile(folder / "lock")
    while not _try_lock(lock):
        if not waits:
            raise BlockingIOError
        time.sleep(_RETRY_SECONDS)
    _is_saving = True
    try:
        with files.with_path_in_errors(folder):
            yield
            write_file_list()
    finally:
        _is_saving = False
        lock.release()


def write_file_list(dtypes: Sequence[str] = DTYPES) -> None:
    """List the files compiled for this processor, and the dtypes that they are complete for; delete damaged ones."""
    folder = code_folder()
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(folder.rglob(f"*{SUFFIX}"))
    intact = [path for path in paths if has_valid_checksum(path)]
    for path in {*paths} - {*intact}:
        path.unlink(missing_ok=True)
    names = [path.relative_to(folder).as_posix() for path in intact]
    files.write_json(folder / _FILE_LIST, {"files": names, "dtypes": [*dtypes]})
    clear_cached_state()


def append_checksum(data: bytes) -> bytes:
    """Append a checksum, which unpickling never reaches."""
    return data + hashlib.sha256(data).digest()


def has_valid_checksum(path: Path) -> bool:
    """Whether a file ends with the checksum of its contents."""
    try:
        data = memoryview(path.read_bytes())
    except (OSError, ValueError):
        return False
    size = hashlib.sha256().digest_size
    return len(data) > size and hashlib.sha256(data[:-size]).digest() == data[-size:]


def clear_cached_state() -> None:
    """Forget whether code exists, and where."""
    for answer in (_version_folder, is_compiled, _intact_dtypes, read_speed):
        answer.cache_clear()


def code_folder() -> Path:
    """The folder of compiled code for this processor: several that share a home have a folder each."""
    return _version_folder() / hashlib.sha256(target_cpu().encode()).hexdigest()[:16]


@cache
def _version_folder() -> Path:
    """The folder of code compiled by this numba from these sources.

    Functions are compiled together with those that they call, so any source may affect any function.
    """
    root = Path(__file__).parents[1]
    sources = sorted(file for folder in _SOURCE_FOLDERS for file in (root / folder).glob("*.py"))
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sources]
    described = repr((_numba_version(), sys.version_info[:2], stamps))
    return files.cache_root() / "native" / hashlib.sha256(described.encode()).hexdigest()[:16]


@cache
def _intact_dtypes() -> frozenset[str]:
    """The dtypes compiled for this processor; none unless all files exist unchanged."""
    folder = code_folder()
    try:
        listed = files.read_json(folder / _FILE_LIST)
        is_intact = all(has_valid_checksum(folder / name) for name in listed["files"])
        return frozenset(listed["dtypes"]) if is_intact else frozenset()
    except (InputError, OSError, TypeError, KeyError):  # the list is damaged
        return frozenset()


def _try_lock(lock: LockFile) -> bool:
    try:
        lock.acquire()
    except BlockingIOError:
        return False
    return True


@delayed_interrupt()
def target_cpu() -> str:
    """The processor that code is compiled for: LLVM's name and features."""
    from llvmlite import binding

    configured = (
        os.environ.get("NUMBA_CPU_NAME"),
        os.environ.get("NUMBA_CPU_FEATURES"),
    )  # numba's variables; tests set them
    detected = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    return " ".join(mine or its for mine, its in zip(configured, detected, strict=True))


@cache
def _numba_version() -> str | None:
    try:
        return importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return None
