"""Whole commands, as a person types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from cli.main import run
from tests.system.conftest import SMALL

COMMANDS = ["demo", "train", "generate", "perplexity", "info", "prepare", "tokenizer",
            "tokenizer train", "tokenizer encode", "tokenizer decode"]  # fmt: skip


def lm(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments], capture_output=True, text=True, timeout=120, **options
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


def test_training_says_nothing_on_stdout_but_what_is_asked_for(place):
    done = lm("train", str(place / "text.txt"), "-o", str(place / "quiet"), "--steps", "5", "--json", *SMALL)
    assert done.returncode == 0
    assert json.loads(done.stdout)["steps"] == 5
    assert "\x1b" not in done.stderr
    assert "validation loss" in done.stderr


def test_without_out_the_run_gets_a_name_of_its_own(place, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(["train", str(place / "text.txt"), "--steps", "2", *SMALL]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["text-tiny", "text-tiny-2"]


def test_a_second_run_reuses_the_tokens(place, capsys):
    assert run(["train", str(place / "text.txt"), "-o", str(place / "again"), "--steps", "2", *SMALL]) == 0
    assert "made before" in capsys.readouterr().err


def test_prepared_tokens_are_a_corpus(place):
    assert run(["prepare", str(place / "text.txt"), "-o", str(place / "tokens"), "--kind", "char"]) == 0
    shape = SMALL[:-2]
    assert run(["train", str(place / "tokens"), "-o", str(place / "prepared"), "--steps", "2", *shape]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(place, number):
    folder = place / f"stopped-{number}"
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "train",
        str(place / "text.txt"),
        "-o",
        str(folder),
        "--steps",
        "100000",
    ]
    process = subprocess.Popen([*command, *SMALL, "--evaluate-every", "0"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert f"lm train --resume {folder}" in stderr
    stopped = json.loads((folder / "checkpoints" / (folder / "last").read_text().strip() / "state.json").read_text())[
        "step"
    ]
    assert run(["train", "--resume", str(folder), "--steps", str(stopped + 3)]) == 0
    assert (folder / "last").read_text() == f"step-{stopped + 3}\n"


def test_resuming_changes_nothing_but_the_length(place, capsys):
    assert run(["train", "--resume", str(place / "run"), "--learning-rate", "1"]) == 2
    assert "learning-rate" in capsys.readouterr().err
    assert run(["train", "--resume", str(place / "run")]) == 2
    assert "finished after 30 steps" in capsys.readouterr().err


def test_stdin_is_a_corpus(place):
    done = lm("train", "-", "-o", str(place / "piped"), "--steps", "2", *SMALL, input=(place / "text.txt").read_text())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_needs_no_torch(command):
    code = (
        "import sys; from cli.main import run; run(sys.argv[1:] + ['--help']);"
        "heavy = {'torch', 'tokenizers', 'numpy', 'safetensors'} & set(sys.modules);"
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage: lm" in done.stdout


def test_the_demo_tells_the_whole_story(tmp_path):
    done = lm("demo", "-o", str(tmp_path / "demo"), "--steps", "3")
    assert done.returncode == 0, done.stderr
    for command in ("$ lm train", "$ lm perplexity", "$ lm generate", "$ lm info"):
        assert command in done.stdout
    assert "perplexity" in done.stdout
    assert lm("demo", "-o", str(tmp_path / "demo")).returncode == 1
