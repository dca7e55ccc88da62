"""Runs are listed and drawn without torch, from folders alone."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import lm
from cli.main import run
from lm.model import build_model, count_parameters
from lm.run_folder import RunLock, load_config
from tests.cli.small_runs import make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    novel = make_run(made / "novel")
    (novel / "metrics.jsonl").write_text('{"step": 1, "nll": 2.5}\n{"step": 2, "nll": 2.0}\n')
    (novel / "timings.jsonl").write_text('{"step": 1, "seconds": 0.5}\n')
    return made


def test_runs_are_listed_and_drawn_without_torch(folder):
    code = (
        "import sys; from cli.main import run\n"
        "codes = run(['runs', sys.argv[1]]), run(['plot', sys.argv[1] + '/novel'])\n"
        "heavy = {'torch', 'numpy', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else max(codes))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "nll" in done.stdout


SMALL = [
    "--d-model",
    "16",
    "--n-layers",
    "1",
    "--n-heads",
    "2",
    "--context",
    "32",
    "--tokenizer",
    "byte",
    "--threads",
    "1",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a run that is not finished, and one that began with its weights."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("The owl saw the fox by the mill.\n" * 60)
    text, runs = str(folder / "text.txt"), folder / "runs"
    assert run(["train", text, "-o", str(runs / "novel"), "--steps", "4", *SMALL]) == 0
    assert run(["train", text, "-o", str(runs / "letters"), "--steps", "3", "--from", str(runs / "novel")]) == 0
    with closing(lm.train_events(lm.run_spec(text, resume=runs / "novel", steps=1500))) as events:
        next(event for event in events if isinstance(event, lm.Step))
    return runs


def test_a_row_says_what_a_run_started_from_how_good_it_is_and_how_far_it_has_come(made, succeed):
    rows = succeed("runs", made).splitlines()
    assert all(len(row) <= 60 for row in rows)
    cells = {row.split("  ")[0]: [cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows[1:]}
    evaluated = [json.loads(line) for line in (made / "letters" / "metrics.jsonl").read_text().splitlines()]
    bits = min(entry["validation_bits_per_byte"] for entry in evaluated if "validation_bits_per_byte" in entry)
    assert cells["letters"][1:2] + cells["letters"][3:] == ["from novel", f"{bits:.4f}", "3"]
    assert cells["novel"][1] == "tiny"
    assert cells["novel"][-1] == "5 of 1,500"
    novel = next(each for each in json.loads(succeed("runs", made, "--json")) if each["run"].endswith("novel"))
    assert novel["parameters"] == count_parameters(build_model(load_config(made / "novel/checkpoints/step-5").model))


def test_a_run_that_is_being_trained_says_so(made, succeed):
    lock, unlocked = RunLock(made / "novel"), made / "letters" / ".lock"
    unlocked.unlink()
    assert "  running, 5 of 1,500\n" in succeed("runs", made)
    assert {Path(each["run"]).name: each["is_running"] for each in json.loads(succeed("runs", made, "--json"))} == {
        "novel": True, "letters": False,
    }  # fmt: skip
    lock.close()
    assert not unlocked.exists()
