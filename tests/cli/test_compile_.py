"""When the decode step is compiled, what is said about it, and how that ends when it is told to."""

import signal
import subprocess
import sys
import time

import pytest

from cli import loading
from cli.main import run
from lm import engine
from lm.api import export
from lm.kernels import code_cache
from tests.cli.small_runs import make_run
from tests.waiting import is_alive, wait_until

pytestmark = pytest.mark.skipif(not code_cache.is_installed(), reason="needs numba")
ENDING = (signal.SIGINT, signal.SIGTERM)
_STARTED = "compiling the decode step for this CPU, which takes a minute or more\n"


@pytest.fixture(autouse=True)
def compiled(monkeypatch, tmp_path):
    """What signals would do at each moment at which something is compiled; nothing is at first."""
    seen = []
    monkeypatch.setattr(engine, "_call_everything", lambda: seen.append([*map(signal.getsignal, ENDING)]))
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    code_cache.is_complete.cache_clear()
    yield seen
    code_cache.is_complete.cache_clear()


def test_signals_end_the_process_while_it_compiles(compiled, capsys):
    before = [*map(signal.getsignal, ENDING)]
    assert run(["compile"]) == 0
    assert capsys.readouterr().err == _STARTED
    assert run(["compile"]) == 0
    assert capsys.readouterr().err == "the decode step is compiled already\n"
    assert compiled == [[signal.SIG_DFL, signal.SIG_DFL]]
    assert [*map(signal.getsignal, ENDING)] == before


@pytest.mark.parametrize("d_model", [32, 256])
def test_import_compiles_what_a_model_of_some_size_needs(compiled, tmp_path, capsys, monkeypatch, d_model):
    """Whose speed is not measured here, which would compile for real."""
    monkeypatch.setattr(loading, "record_decoding_dtype", lambda run: None)
    export(make_run(tmp_path / "run", d_model=d_model), tmp_path / "theirs")
    assert run(["import", str(tmp_path / "theirs"), "-o", str(tmp_path / "back")]) == 0
    assert len(compiled) == (d_model > 32)
    assert (_STARTED in capsys.readouterr().err) == (d_model > 32)


def test_generation_says_once_that_compiling_helps_and_compiles_nothing(compiled, tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    command = ["generate", str(folder), "The owl", "--temperature", "0", "--max-tokens", "5"]
    for said in (1, 0):
        assert run(command) == 0
        assert capsys.readouterr().err.count("lm compile") == said
    assert not compiled


def test_the_child_process_ends_with_its_context():
    with engine.compiling_in_child() as child:
        assert child.poll() is None
    assert child.poll() is not None


@pytest.mark.slow
def test_a_killed_command_leaves_no_child():
    code = (
        "import time; from lm import engine\n"
        "with engine.compiling_in_child() as child: print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(1)  # Python has started
        parent.kill()
    wait_until(lambda: not is_alive(pid))
