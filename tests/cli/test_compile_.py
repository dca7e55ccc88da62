"""`lm compile` begins no long work that it could not keep, and ends at once when it is told to."""

import signal

import pytest

from cli.main import run
from lm.engine.compiled import build

ENDING = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def compiled(monkeypatch):
    """What signals would do at each moment at which something is compiled."""
    seen = []
    monkeypatch.setattr(build, "compile_decode_step", lambda: seen.append([*map(signal.getsignal, ENDING)]) or 1.5)
    return seen


def test_signals_end_the_process_while_it_compiles(compiled, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    before = [*map(signal.getsignal, ENDING)]
    assert run(["compile"]) == 0
    announced = "compiling the decode step for this CPU, which takes a minute or more\n"
    assert capsys.readouterr().err == f"{announced}compiled the decode step in 1.5 s\n"
    assert compiled == [[signal.SIG_DFL, signal.SIG_DFL]]
    assert [*map(signal.getsignal, ENDING)] == before


def test_a_signal_that_is_ignored_stays_so(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run(["compile"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert compiled == [[signal.SIG_IGN, signal.SIG_DFL]]


def test_nothing_is_compiled_that_cannot_be_kept(compiled, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "file"))
    assert run(["compile"]) == 1
    assert "file: is a file, not a folder; choose another place (LM_CACHE)" in capsys.readouterr().err
    assert not compiled
