"""When compiled code is loaded, and which; and when it is compiled."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lm import engine
from lm.engine import compile_decode_step
from lm.kernels import code_cache
from tests.forked import Forked

pytestmark = pytest.mark.skipif(not code_cache.is_installed(), reason="needs numba")


def forget() -> None:
    for answer in (code_cache.is_complete, code_cache.target_cpu, code_cache._hash):
        answer.cache_clear()


@pytest.fixture(autouse=True)
def empty(monkeypatch, tmp_path):
    """An empty cache; nothing takes long to compile."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(engine, "_call_everything", lambda: None)
    forget()
    yield
    forget()


def test_of_two_that_compile_at_once_one_does(monkeypatch):
    done = []
    monkeypatch.setattr(engine, "_call_everything", lambda: (time.sleep(0.3), done.append(1)))
    threads = [threading.Thread(target=compile_decode_step) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [1]


def test_code_of_other_sources_is_not_loaded(monkeypatch, tmp_path):
    compile_decode_step()
    assert code_cache.is_complete()
    shutil.copytree(Path(code_cache.__file__).parent, tmp_path / "kernels")
    monkeypatch.setattr(code_cache, "__file__", str(tmp_path / "kernels" / "code_cache.py"))
    forget()
    assert not code_cache.is_complete()


def _add(a, b):
    return a + b


def print_sum() -> None:
    """Print a sum by compiled code, and where that came from."""
    from lm.kernels.jit import njit
    from lm.kernels.torch_ops import initialise_numba

    initialise_numba()

    add = njit(_add, is_entry=True)
    print(add(1, 2), "loaded" if add.stats.cache_hits else "compiled")


OBEYING = """
import ctypes, os, sys
if not os.geteuid():  # as root, who may write everywhere, unless CAP_DAC_OVERRIDE is dropped (PR_CAPBSET_DROP)
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", "from tests.lm.kernels.test_code_cache import *; print_sum()"])
"""


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="drops a capability of Linux")
def test_code_in_a_folder_that_cannot_be_written_to_is_loaded():
    """And nothing is written elsewhere: numba would compile again, and put that beside the source."""
    assert printed(print_sum) == "3 compiled"
    folder, here = code_cache.code_folder(), Path(__file__).parent
    paths = [folder, *folder.iterdir()]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        told = subprocess.run([sys.executable, "-c", OBEYING], capture_output=True, text=True, check=False)
    finally:
        for path in paths:
            path.chmod(0o755)
    assert told.stdout.strip() == "3 loaded", told.stderr
    assert not [*here.rglob("*.nbi"), *here.rglob("*.nbc")]


@pytest.mark.medium
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_damaged_code_is_compiled_again(suffix):
    assert printed(print_sum) == "3 compiled"
    assert printed(print_sum) == "3 loaded"
    (damaged,) = code_cache.code_folder().glob(f"*{suffix}")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert printed(print_sum) == "3 compiled"
    assert printed(print_sum) == "3 loaded"


def printed(function) -> str:
    with Forked(function, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout
        return process.stdout.read().strip()
