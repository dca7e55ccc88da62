"""What a run or a preset is, and what it costs."""

import json

import pytest

from cli.main import run
from tests.cli.small_runs import make_run


@pytest.fixture
def described(succeed):
    """Returns what `lm info … --json` prints."""
    return lambda *arguments: json.loads(succeed("info", *arguments, "--json"))


def test_a_run_is_described_by_its_last_checkpoint(tmp_path, monkeypatch, succeed, described):
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "gpt2")  # which wins over the preset
    found = described("gpt2")
    assert found["checkpoint"] == "gpt2/checkpoints/step-0"
    assert found["progress"]["step"] == 0
    assert found["config"]["model"]["d_model"] == 32
    assert found.keys() >= {"training_bytes", "cache_bytes_per_token"}
    assert "d_model 32" in succeed("info", folder)
    assert run(["info", str(tmp_path / "nowhere")]) == 2


def test_presets_are_listed_and_described_by_what_differs_from_the_defaults(succeed, described):
    listed = described()
    assert listed["gpt2"] == 124_439_808
    heading, *rows = succeed("info").splitlines()
    assert heading.split() == ["preset", "parameters", "description"]
    assert [row.split()[0] for row in rows] == list(listed)
    lines = succeed("info", "switch-base").splitlines()
    assert ", activation relu, dropout 0.1," in next(line for line in lines if line.startswith("model "))
    assert "active parameters         223M" in lines  # as of T5 base (Fedus et al. 2021, table 1)
