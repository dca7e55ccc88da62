"""`lm merge` refuses what has nothing to merge; what it computes is tested with whole commands."""

from __future__ import annotations

from cli.main import run
from tests.cli.small_runs import make_run


def test_a_run_without_adapters_and_one_that_is_none(tmp_path, capsys):
    folder = make_run(tmp_path / "novel")
    assert run(["merge", str(folder), "-o", str(tmp_path / "out")]) == 2
    assert "novel: has no adapters, so there is nothing to merge (lm train --lora)" in capsys.readouterr().err
    assert run(["merge", str(tmp_path / "nowhere"), "-o", str(tmp_path / "out")]) == 1
    assert "nowhere: no such run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
