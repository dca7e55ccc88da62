"""Runs are listed and drawn without torch, from folders alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import run
from lm.model.transformer import build_model, count_parameters
from lm.run_folder import load_config
from tests.cli.small_runs import make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    novel = make_run(made / "novel")
    (novel / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
    (novel / "timings.jsonl").write_text('{"step": 1, "seconds": 0.5}\n')
    return made


def without_torch(*arguments: str) -> str:
    """What a command prints in a process of its own, which must not import what takes time."""
    code = (
        "import sys; from cli.main import run; code = run(sys.argv[1:])\n"
        "heavy = {'torch', 'numpy', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runs_are_listed(folder):
    (described,) = json.loads(without_torch("runs", str(folder), "--json"))
    assert described["run"] == str(folder / "novel")
    assert described["parameters"] == count_parameters(
        build_model(load_config(folder / "novel/checkpoints/step-0").model)
    )
    (row,) = without_torch("runs", str(folder)).splitlines()[1:]
    assert row.split()[1] == "–"  # of no preset
    assert row.endswith("unfinished")


def test_curves_are_drawn(folder):
    assert "nll" in without_torch("plot", str(folder / "novel"))


def test_of_runs_without_nll_the_loss_is_drawn(folder, tmp_path, capsys):
    """As earlier versions wrote them; where there is nll, it is drawn."""
    assert run(["plot", str(folder / "novel"), "--width", "40"]) == 0
    old = capsys.readouterr()
    assert "did not record nll; its loss is drawn" in old.err
    assert "2.5" in old.out
    new = tmp_path / "new"
    new.mkdir()
    lines = [f'{{"step": {step}, "loss": 9.5, "nll": {nll}}}\n' for step, nll in ((1, 3.5), (2, 3.0))]
    (new / "metrics.jsonl").write_text("".join(lines))
    (new / "timings.jsonl").write_text("")
    assert run(["plot", str(new), "--width", "40"]) == 0
    drawn = capsys.readouterr()
    assert drawn.err == ""
    assert "3.5" in drawn.out
    assert "9.5" not in drawn.out
    assert run(["plot", str(new), "--what", "loss", "--width", "40"]) == 0
    assert "9.5" in capsys.readouterr().out
