"""Runs that an earlier commit trained load, resume, decode and score, with the results that they had."""

import json
import shutil
from pathlib import Path

import pytest

from cli.main import run
from tests.golden.make_runs import KINDS, RUNS, predicted, score_command, use_command

EXPECTED = json.loads((RUNS / "expected.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A copy of the runs, to be trained on."""
    return Path(shutil.copytree(RUNS, tmp_path_factory.mktemp("golden") / "runs"))


@pytest.fixture(autouse=True)
def among_runs(runs, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.setenv("LM_TOKEN_HEALING", "no")  # which that version did not have


@pytest.mark.parametrize("name", KINDS)
def test_predictions(name, capsys):
    assert run(use_command(KINDS[name], name)) == 0
    found = [predicted(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert found == EXPECTED[name]["predictions"]


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.score])
def test_scores(name, capsys):
    assert run(score_command(KINDS[name], name)) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["tokens"] == EXPECTED[name]["tokens"]
    assert total["nats"] == pytest.approx(EXPECTED[name]["nats"], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_resuming(name, runs):
    steps = KINDS[name].steps + 1
    assert run(["train", "--resume", name, "--steps", str(steps)]) == 0
    assert (runs / name / "last").read_text().strip() == f"step-{steps}"
    logged = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    first, last = (next(row["nll"] for row in rows if "nll" in row) for rows in (logged, reversed(logged)))
    assert last < first
