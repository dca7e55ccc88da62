"""Whether compiled code is there, for this processor, and worth loading."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from functools import cache
from pathlib import Path

import torch

from lm import files

_LOADING = 0.4
"""Seconds that numba takes to be loaded: that is done when torch has spent as many on what it could have done."""
_PACKAGES = ("kernels", "native")

_spent = 0.0


def serves(seconds: float) -> bool:
    """Whether compiled code is there, and worth loading, for what torch takes about so many seconds for."""
    return is_compiled() and is_worth_loading(seconds) and is_ready()


def is_worth_loading(seconds: float) -> bool:
    """Whether compiled code is worth loading for what torch takes about so many seconds for; if not, torch is to do it.

    The seconds are reckoned, not measured, so that results don't depend on a clock.
    """
    global _spent  # noqa: PLW0603 (numba is loaded for a process)
    if "numba" in sys.modules or _spent + seconds > _LOADING:
        return True
    _spent += seconds
    return False


def is_ready() -> bool:
    """Whether all was compiled, for the processor of this machine."""
    return is_compiled() and _is_of_this_processor()


@cache
def begin() -> None:
    """Have what is compiled from now on come from the cache, and go there; begin the threads.

    Threads otherwise begin when code is loaded that could use them. They may be threads of the very OpenMP that torch
    has: beginning them changes how many torch takes, which is put right.
    """
    import numba

    numba.config.CACHE_DIR = str(_folder())
    taken = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(taken)


def threads() -> int:
    """How many threads compiled code takes: as many as torch."""
    import numba

    taken = torch.get_num_threads()
    if taken > 1:
        numba.set_num_threads(min(taken, numba.config.NUMBA_NUM_THREADS))
    return taken


def is_installed() -> bool:
    """Whether there is a compiler: the package numba, which is an extra."""
    return _version() is not None


@cache
def is_compiled() -> bool:
    """Whether all was compiled by this numba, from these files."""
    return is_installed() and _mark().is_file()


def note_compiled() -> None:
    """Remember that it was, and for which processor."""
    _mark().parent.mkdir(parents=True, exist_ok=True)
    _mark().write_text(processor(), encoding="utf-8")
    is_compiled.cache_clear()
    _is_of_this_processor.cache_clear()


@cache
def _folder() -> Path:
    """Where machine code is kept that this numba makes of these files.

    numba's cache goes by the time of the file that a function stands in, not of those whose functions it calls.
    """
    root = Path(__file__).parents[1]
    sources = sorted(file for package in _PACKAGES for file in (root / package).glob("*.py"))
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sources]
    described = repr((_version(), stamps))
    return files.cache_root() / "native" / hashlib.sha256(described.encode()).hexdigest()[:16]


def _mark() -> Path:
    """The file that says that it is whole, and for which processor it was made."""
    return _folder() / "processor"


@cache
def _is_of_this_processor() -> bool:
    """Whether code was compiled for the processor of this machine; the folder may have come from another."""
    return _mark().read_text(encoding="utf-8") == processor()


def processor() -> str:
    """The one that code is compiled for: its name and what it can do, in the compiler's terms."""
    from llvmlite import binding

    told = (os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES"))  # as numba has it; tests set them
    found = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    return " ".join(mine or its for mine, its in zip(told, found, strict=True))


def _version() -> str | None:
    try:
        return importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return None
