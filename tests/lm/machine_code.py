"""Where the tests keep compiled code: beside what else pytest keeps from one run to the next."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lm.kernels import code_cache
from lm.kernels.torch_ops import initialise_numba
from tests.kept import kept_folder

_KEPT = 4
"""Folders that are kept: of another processor, for which tests may compile too, and of some earlier sources."""


@contextmanager
def kept_code(config: pytest.Config) -> Iterator[Path]:
    """Compiled code is in the cache of pytest, in the folder of this compiler, processor and these sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(kept_folder(config, "machine-code")))
        code_cache.is_complete.cache_clear()
        initialise_numba.cache_clear()
        folder = code_cache.code_folder()
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for other in sorted(folder.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(other, ignore_errors=True)
        yield folder
    code_cache.is_complete.cache_clear()
    initialise_numba.cache_clear()
