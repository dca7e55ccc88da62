"""Where the tests keep compiled code: beside what else pytest keeps from one run to the next."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lm.kernels import code_cache
from tests.kept import kept_folder


def _forget() -> None:
    """Ask again where compiled code is, and whether."""
    code_cache.clear_cached_state()
    code_cache.initialise.cache_clear()


@contextmanager
def kept_code(config: pytest.Config) -> Iterator[Path]:
    """Compiled code is in the cache of pytest, in the folder of this compiler and these sources; others are removed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(kept_folder(config, "machine-code")))
        _forget()
        folder = code_cache._version_folder()
        for other in folder.parent.glob("*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        yield folder
    _forget()
