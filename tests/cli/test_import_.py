"""`lm import` says what it found and where it wrote it."""

from __future__ import annotations

from cli.main import run
from tests.cli.small_runs import make_run


def test_the_kind_of_model_and_the_run_are_told(tmp_path, capsys):
    assert run(["export", str(make_run(tmp_path / "novel")), "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert run(["import", str(tmp_path / "out"), "-o", str(tmp_path / "again")]) == 0
    told = capsys.readouterr()
    assert "LlamaForCausalLM, " in told.err
    assert f"wrote   {tmp_path / 'again' / 'checkpoints' / 'step-0'}" in told.err
    assert not told.out
    assert run(["import", str(tmp_path / "out"), "-o", str(tmp_path / "again")]) == 1
    assert capsys.readouterr().err == f"lm: {tmp_path / 'again'}: holds a run already; choose another folder (--out)\n"


def test_a_folder_that_is_none(tmp_path, capsys):
    assert run(["import", str(tmp_path / "nowhere"), "-o", str(tmp_path / "again")]) == 1
    assert "nowhere: no such folder; name the folder of a model" in capsys.readouterr().err
