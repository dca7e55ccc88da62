"""When compiled code is loaded, and which."""

import os
import pwd
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm.engine.compiled.build import compile_decode_step
from lm.errors import InputError
from lm.kernels import code_cache
from lm.locks import LockFile
from tests.forked import Forked

pytestmark = pytest.mark.skipif(not code_cache.is_installed(), reason="needs numba")


def test_machine_code_of_other_sources_is_not_loaded(monkeypatch, tmp_path):
    code_cache._version_folder.cache_clear()
    found = {code_cache._version_folder()}
    root = Path(code_cache.__file__).parents[1]
    for package in code_cache._SOURCE_FOLDERS:
        (tmp_path / package).mkdir(parents=True)
        for file in (root / package).glob("*.py"):
            (tmp_path / package / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(code_cache, "__file__", str(tmp_path / "kernels" / "compiled.py"))
    for changed in ("kernels/products.py", "engine/compiled/step.py"):
        with (tmp_path / changed).open("a") as file:
            file.write("# another line\n")
        code_cache._version_folder.cache_clear()
        found.add(code_cache._version_folder())
    code_cache._version_folder.cache_clear()
    assert len(found) == 3


@pytest.fixture
def code(monkeypatch, tmp_path):
    """The folder of code that was compiled for a processor called one."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(code_cache, "target_cpu", lambda: "one")
    code_cache.clear_cached_state()
    write()
    yield code_cache.code_folder()
    code_cache.clear_cached_state()


def write() -> None:
    """Stand in for a compiler."""
    for name in ("a", "b"):
        path = code_cache.code_folder() / "kernels" / (name + code_cache.SUFFIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code_cache.append_checksum(name.encode() * 1000))
    code_cache.write_file_list()


def test_code_serves_the_processor_that_it_was_compiled_for(code, monkeypatch):
    """Others that share a home have code of their own, and take nothing away."""
    assert code_cache.is_ready()
    monkeypatch.setattr(code_cache, "target_cpu", lambda: "another")
    code_cache.clear_cached_state()
    assert not code_cache.is_ready()
    write()
    assert code_cache.is_ready()
    monkeypatch.setattr(code_cache, "target_cpu", lambda: "one")
    code_cache.clear_cached_state()
    assert code_cache.is_ready()


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "other bytes": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", ["compiled.json", "kernels/b.nbc"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_code_is_not_ready_and_can_be_compiled_again(damage, name, code):
    DAMAGE[damage](code / name)
    code_cache.clear_cached_state()
    assert not code_cache.is_ready()
    assert not (damage == "a folder" and code_cache.has_valid_checksum(code / name))
    if (code / name).is_dir():
        (code / name).rmdir()
    write()
    assert code_cache.is_ready()


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '{"files": 5}', '{"files": [7]}', '{"files": ["a\\u0000b"]}', "[" * 9999]
)
def test_a_list_of_something_else_is_a_damaged_one(text, code):
    (code / "compiled.json").write_text(text)
    code_cache.clear_cached_state()
    assert not code_cache.is_ready()


def test_what_is_damaged_is_not_listed(code):
    DAMAGE["cut"](code / "kernels" / "b.nbc")
    code_cache.write_file_list()
    assert code_cache.is_ready()
    assert [path.name for path in code.rglob("*.nbc")] == ["a.nbc"]


def test_two_that_compile_wait_for_each_other(code, monkeypatch):
    (code / "compiled.json").unlink()
    code_cache.clear_cached_state()
    monkeypatch.setattr(code_cache, "_RETRY_SECONDS", 0.01)
    other, order = LockFile(code / "lock"), []

    def compile_too():
        with code_cache.compile_lock():
            order.append("this one")

    other.acquire()
    thread = threading.Thread(target=compile_too)
    thread.start()
    thread.join(0.1)
    order.append("the other")
    other.release()
    thread.join()
    assert order == ["the other", "this one"]
    assert code_cache.is_ready()


def test_without_a_home_there_is_no_code(monkeypatch):
    """As in a container whose user has no entry in the system's list."""

    def nobody(_uid):
        raise KeyError

    for name in ("LM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    code_cache.clear_cached_state()
    assert not code_cache.is_ready()
    with pytest.raises(InputError, match="set LM_CACHE"):
        compile_decode_step()
    code_cache.clear_cached_state()


def test_a_compiler_that_is_switched_off_is_none(code, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    code_cache.clear_cached_state()
    assert not code_cache.is_ready()
    with pytest.raises(InputError, match="NUMBA_DISABLE_JIT keeps numba from compiling: unset it"):
        compile_decode_step()
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    code_cache.clear_cached_state()
    assert code_cache.is_ready()


def print_readiness() -> None:
    code_cache.write_file_list()
    print(code_cache.is_ready(), "numba" in sys.modules)


def test_whether_code_is_ready_is_known_without_the_compiler(tmp_path):
    """Which takes its time to be loaded."""
    assert printed(print_readiness, LM_CACHE=str(tmp_path)) == "True False"


def print_top_two() -> None:
    """Print the best two logits, and whether numba's implementations of NumPy and of strings are loaded."""
    from lm.kernels.topk import top_k

    logits = np.float32([[1, 4, 2, 3]])
    top = np.empty((1, 2), np.float32), np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    top_k(logits, logits, *top)
    print(
        top[1][0], top[2][0].round(4), *(f"numba.{name}" in sys.modules for name in ("np.arrayobj", "cpython.unicode"))
    )


@pytest.mark.medium
def test_loaded_code_computes_the_same_without_what_compiling_needs(tmp_path):
    """Numba's implementations of NumPy and of strings take longer to import than the code takes to load."""
    compiled, loaded = (printed(print_top_two, LM_CACHE=str(tmp_path), NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    logprobs = np.log(np.exp([4, 3]) / np.exp([1, 4, 2, 3]).sum()).round(4).astype(np.float32)
    assert compiled == f"[1 3] {logprobs} True True"
    assert loaded == f"[1 3] {logprobs} False False"


def printed(function: Callable[[], None], **environment: str) -> str:
    with Forked(function, stdout=subprocess.PIPE, env={**os.environ, **environment}) as process:
        assert process.stdout
        return process.stdout.read().strip()
