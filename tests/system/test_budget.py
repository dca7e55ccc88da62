"""`lm train --budget` and `--depth`, as a person types them."""

from __future__ import annotations

import io
import json
import sys

import pytest

from cli import clock
from cli.main import run
from tests.system.conftest import SMALL


def config(folder):
    return json.loads((folder / "config.json").read_text())


def test_a_time_is_all_that_has_to_be_said(place, tmp_path, capsys):
    assert run(["train", str(place / "text.txt"), "--budget", "12s", "-o", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "enough for" in said
    assert "weight decay" in said
    assert "expect more than" in said
    assert "the learning rate falls from here" in said
    made = config(tmp_path / "run")
    assert made["preset"].startswith("depth-")
    assert made["training"]["budget"] == "12s"
    assert made["plan"]["deadline"] is None
    assert made["training"]["r_drop"] > 0  # the text is short, and seen very often
    assert "each batch goes through twice" in said
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) == made["plan"]["steps"]
    assert any("validation_loss" in line for line in lines)


def test_with_a_preset_only_the_length_follows_the_clock(place, tmp_path):
    command = ["train", str(place / "text.txt"), "--preset", "nanogpt-cpu", *SMALL, "--budget", "10s"]
    assert run([*command, "-o", str(tmp_path / "run")]) == 0
    made = config(tmp_path / "run")
    assert (made["preset"], made["model"]["d_model"], made["training"]["schedule"]) == ("nanogpt-cpu", 32, "wsd")


def test_the_text_for_a_budget_may_come_from_a_pipe(place, tmp_path, monkeypatch):
    """It is looked at for the size of the model, and read again."""
    text = (place / "text.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["train", "-", "--budget", "10s", "-o", str(tmp_path / "run")]) == 0


def test_what_is_given_wins_over_what_a_budget_chooses(place, tmp_path):
    flags = ["--n-layers", "1", "--vocab-size", "300", "--batch-size", "4", "--dropout", "0.0"]
    assert run(["train", str(place / "text.txt"), "--budget", "10s", *flags, "-o", str(tmp_path / "run")]) == 0
    made = config(tmp_path / "run")
    assert (made["model"]["n_layers"], made["model"]["dropout"]) == (1, 0.0)
    assert made["training"]["r_drop"] == 0  # without dropout two passes are the same
    assert (made["tokenizer"]["vocab_size"], made["training"]["batch_size"]) == (300, 4)
    assert made["training"]["batch_tokens"] is None


def test_so_does_what_a_file_says(place, tmp_path):
    (tmp_path / "settings.toml").write_text("[training]\nevaluate_every = 3\nweight_decay = 0.05\n")
    command = ["train", str(place / "text.txt"), "--budget", "10s", "--config", str(tmp_path / "settings.toml")]
    assert run([*command, "-o", str(tmp_path / "run")]) == 0
    made = config(tmp_path / "run")
    assert made["preset"].startswith("depth-")
    assert (made["training"]["evaluate_every"], made["training"]["weight_decay"]) == (3, 0.05)


def test_a_depth_is_a_preset(place, tmp_path):
    command = ["train", str(place / "text.txt"), "--depth", "1", "--steps", "2", "--vocab-size", "300"]
    assert run([*command, "-o", str(tmp_path / "run")]) == 0
    assert config(tmp_path / "run")["preset"] == "depth-1"
    assert run(["info", "depth-3", "--json"]) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--budget", "10"], "90s, 10m or 1h30m"),
        (["--budget", "10m", "--steps", "5"], "only one of"),
        (["--budget", "10m", "--schedule", "cosine"], "wsd"),
        (["--depth", "3", "--preset", "tiny"], "leave out --preset"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_made(place, tmp_path, capsys, flags, said):
    assert run(["train", str(place / "text.txt"), *flags, "-o", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_budget_is_not_for_pairs(place, tmp_path, capsys):
    text = str(place / "text.txt")
    command = ["train", "--source", text, "--target", text, "--budget", "10m", "-o", str(tmp_path / "run")]
    assert run(command) == 2
    assert "--epochs" in capsys.readouterr().err


def test_a_budget_that_is_over_before_training_begins_says_so(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(clock, "elapsed", lambda: 12.0)
    assert run(["train", str(place / "text.txt"), "--budget", "10s", "-o", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "lm: 10s is too short: 12.0 s went into getting ready (--budget)\n"
    assert not (tmp_path / "run").exists()
