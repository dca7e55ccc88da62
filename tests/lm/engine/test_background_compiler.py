import os
import subprocess
import sys
import time

import pytest

from cli.background_compilation import compiling_in_background
from cli.main import run
from lm.config.model import ModelConfig
from lm.engine import background_compiler
from lm.engine.background_compiler import BackgroundCompiler
from lm.kernels import code_cache
from lm.locks import LockFile
from tests.cli.small_runs import make_run

CONFIG = ModelConfig(vocab_size=8, context_length=4, d_model=4, n_layers=1, n_heads=1)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """An empty cache, and two cores."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LM_BACKGROUND_COMPILE", raising=False)
    monkeypatch.setattr(background_compiler, "available_cores", lambda: 2)
    code_cache.clear_cached_state()
    yield
    code_cache.clear_cached_state()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_starts_once_there_is_no_code_and_ends_when_it_is_stopped():
    compiler = BackgroundCompiler.start(CONFIG, "cpu")
    assert compiler is not None
    assert compiler.is_first
    assert is_running(compiler._process.pid)
    compiler.stop()
    assert not is_running(compiler._process.pid)
    again = BackgroundCompiler.start(CONFIG, "cpu")
    assert again is not None
    assert not again.is_first
    again.stop()
    code_cache.write_file_list()
    assert BackgroundCompiler.start(CONFIG, "cpu") is None


def test_only_the_first_commands_wait_for_it(monkeypatch):
    monkeypatch.setattr(background_compiler, "_MAX_WAITS", 2)
    waiting = []
    for _ in range(3):
        compiler = BackgroundCompiler.start(CONFIG, "cpu")
        assert compiler is not None
        waiting.append(compiler.may_wait)
        compiler.stop()
    assert waiting == [True, True, False]


def test_it_continues_while_only_float32_is_compiled():
    code_cache.write_file_list(("float32",))
    assert code_cache.is_ready()
    assert not code_cache.is_ready("int8")
    compiler = BackgroundCompiler.start(CONFIG, "cpu")
    assert compiler is not None
    compiler.stop()


@pytest.mark.parametrize("value", ["0", "false", "No", "off"])
def test_a_variable_disables_it(monkeypatch, value):
    monkeypatch.setenv("LM_BACKGROUND_COMPILE", value)
    assert BackgroundCompiler.start(CONFIG, "cpu") is None


def test_nothing_starts_where_it_would_not_be_used(monkeypatch):
    assert BackgroundCompiler.start(CONFIG, "cuda") is None
    assert BackgroundCompiler.start(CONFIG.replace(objective="masked"), "cpu") is None
    monkeypatch.setattr(background_compiler, "available_cores", lambda: 1)
    assert BackgroundCompiler.start(CONFIG, "cpu") is None


def test_a_cache_that_is_not_writable_or_where_compiling_failed_is_left_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "file" / "cache"))
    code_cache.clear_cached_state()
    with compiling_in_background(CONFIG, "cpu"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    code_cache.clear_cached_state()
    assert code_cache.create_folder()
    code_cache.record_failure()
    assert BackgroundCompiler.start(CONFIG, "cpu") is None


def test_the_line_is_printed_once_and_output_and_tokens_stay_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cli.background_compilation._MAX_WAIT_SECONDS", 0.1)
    folder = make_run(tmp_path / "run")
    command = ["generate", str(folder), "The owl", "--greedy", "--max-tokens", "5"]
    outputs = []
    for _ in range(2):
        assert run(command) == 0
        outputs.append(capsys.readouterr())
    assert outputs[0].err.count("\n") == 1
    assert "LM_BACKGROUND_COMPILE=0" in outputs[0].err
    assert outputs[1].err == ""
    assert outputs[0].out == outputs[1].out


@pytest.mark.medium
def test_the_compiler_ends_well_when_there_is_nothing_left_to_compile():
    """Another process holds the lock, so that it ends at once, while its parent still runs."""
    assert code_cache.create_folder()
    lock = LockFile(code_cache.code_folder() / "lock")
    code_cache.code_folder().mkdir(parents=True)
    lock.acquire()
    try:
        compiler = BackgroundCompiler.start(CONFIG, "cpu")
        assert compiler is not None
        assert compiler._process.wait(300) == 0
        compiler.stop()
    finally:
        lock.release()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills with a signal")
def test_a_killed_command_leaves_no_process():
    code = (
        "import time; from lm.engine import background_compiler as b; b.available_cores = lambda: 2; "
        "from tests.lm.engine.test_background_compiler import CONFIG; c = b.BackgroundCompiler.start(CONFIG, 'cpu'); "
        "print(c._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(1)  # Python has started
        parent.kill()
    for _ in range(600):
        if not is_running(pid):
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    raise AssertionError("the compiler outlives its command")
