"""Where compiled code is kept, and whether it is complete; known without numba, which takes time to import."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lm import files
from lm.errors import InputError
from lm.processes import delayed_interrupt


def is_installed() -> bool:
    """Whether numba, an optional dependency, is installed and not disabled."""
    return find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}


@cache
def is_complete() -> bool:
    """Whether everything is compiled."""
    try:
        return is_installed() and (code_folder() / "complete").exists()
    except (InputError, OSError):
        return False


def code_folder() -> Path:
    """The folder of the code that this numba compiles from these sources for this processor."""
    return files.cache_root() / "compiled" / _hash()


@cache
def _hash() -> str:
    root = Path(__file__).parents[1]
    compiled = [*root.glob("kernels/*.py"), *root.glob("engine/compiled.py"), *root.glob("engine/decode_step.py")]
    sources = [path.read_bytes() for path in sorted(compiled)]
    versions = [sys.version, *map(importlib.metadata.version, ("numba", "llvmlite"))]
    return hashlib.sha256(repr((versions, target_cpu(), sources)).encode()).hexdigest()[:16]


@cache
@delayed_interrupt()
def target_cpu() -> str:
    """The processor that code is compiled for: LLVM's name and features."""
    from llvmlite import binding

    return f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
