"""Whole commands, as a person types them."""

import json
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

from cli.main import run
from lm.run_folder import find_checkpoint, load_state
from tests.forked import start
from tests.lm.full_disk import full_disk
from tests.system.conftest import SMALL
from tests.waiting import SECONDS, wait_for_steps


def lm(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments], capture_output=True, text=True, timeout=SECONDS, **options
    )


def test_from_a_text_to_a_measured_model(place, capsys):
    assert run(["generate", str(place / "run"), "one", "--max-tokens", "8", "--json", "--seed", "1"]) == 0
    sample = json.loads(capsys.readouterr().out)
    assert sample["prompt"] == "one"
    assert len(sample["tokens"]) == len(sample["logprobs"]) <= 8
    assert run(["perplexity", str(place / "run"), str(place / "text.txt"), "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["bytes"] == (place / "text.txt").stat().st_size
    assert total["words"] == 3600
    assert run(["info", str(place / "run"), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["progress"]["step"] == 30
    assert described["progress"]["flops"] == pytest.approx(described["training_flops_per_token"] * 30 * 4 * 16)


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(place, number):
    folder = place / f"stopped-{number}"
    command = [
        "train", str(place / "text.txt"), "-o", str(folder), "--steps", "100000", "--evaluate-every", "0", *SMALL,
    ]  # fmt: skip
    with start(*command, stderr=PIPE) as process:
        wait_for_steps(folder, 1)
        process.send_signal(number)
        assert f"lm train --resume {folder}" in process.stderr.read()
        assert process.wait() == 128 + number
    stopped = load_state(find_checkpoint(folder, which="last")).step
    assert run(["train", "--resume", str(folder), "--steps", str(stopped + 3)]) == 0
    assert (folder / "last").read_text() == f"step-{stopped + 3}\n"


@pytest.mark.medium
def test_plots(place, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["plot", str(place / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    losses = [json.loads(line).get("loss") for line in (place / "run/metrics.jsonl").read_text().splitlines()]
    highest = max(loss for loss in losses if loss is not None)
    assert lines[1].lstrip().startswith(f"{highest:.4g}")
    assert max(map(len, lines[:-1])) <= 60
    for name in ("a.png", "a.svg"):
        assert run(["plot", str(place / "run"), "--what", "learning_rate", "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    capsys.readouterr()
    with full_disk(after=100):
        assert run(["plot", str(place / "run"), "-o", str(tmp_path / "b.png")]) == 1
    assert not (tmp_path / "b.png").exists()
    (tmp_path / "empty").mkdir()
    assert run(["plot", str(tmp_path / "empty")]) == 1
    capsys.readouterr()
    assert run(["plot", str(tmp_path / "empty"), str(place / "run")]) == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("closed", [{"stdout": None, "stderr": PIPE}, dict.fromkeys(("stdin", "stdout", "stderr"))])
def test_closed_streams_are_no_reason_to_fail(place, tmp_path, closed):
    page = tmp_path / "page.html"
    with start("perplexity", place / "run", place / "text.txt", "--html", page, **closed) as process:
        assert process.stderr is None or "Traceback" not in process.stderr.read()
        assert process.wait() == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_experts_train_resume_generate_and_are_told_of(place, capsys, tmp_path):
    flags = ["--set", "model.experts=4", "--set", "model.experts_per_token=2", *SMALL]
    command = ["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), "--steps", "4", "--evaluate-every", "2"]
    assert run([*command, *flags]) == 0
    assert run(["train", "--resume", str(tmp_path / "run"), "--steps", "6"]) == 0
    assert run(["generate", str(tmp_path / "run"), "one", "--max-tokens", "8", "--json"]) == 0
    capsys.readouterr()
    assert run(["perplexity", str(tmp_path / "run"), str(place / "text.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["perplexity"] < 300
    assert run(["info", str(tmp_path / "run"), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["active_parameters"] < described["parameters"]["total"]
    assert described["progress"]["flops"] == pytest.approx(described["training_flops_per_token"] * 6 * 4 * 16)
