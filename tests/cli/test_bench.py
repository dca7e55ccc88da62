"""`lm bench`: what it prints; none of these tests is about speed."""

import json
import math

import pytest

from cli.main import run

QUICK = ["bench", "nanogpt-cpu", "--device", "cpu", "--dtype", "float32", "--seconds", "0", "--batch-size", "1"]


def test_json_has_the_machine_its_limits_and_each_figure(capsys):
    assert run([*QUICK, "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["device"] == "cpu"
    limit = described["limits"]["flops"]["float32"]
    assert limit > 0
    assert described["limits"]["memory_bandwidth"] > 0
    measured = described["measurements"]
    shapes = [("training", 1), ("prefill", 1), ("decoding", 1), ("decoding", 16)]
    assert [(each["task"], each["rows"]) for each in measured] == shapes
    for each in measured:
        assert math.isfinite(each["tokens_per_second"])
        assert each["tokens_per_second"] == pytest.approx(each["rows"] * each["length"] / each["seconds"])
        assert each["utilisation"] == pytest.approx(each["flops"] / each["seconds"] / limit)


def test_a_table_on_stdout_and_notes_on_stderr(capsys):
    assert run(QUICK) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("cpu, ")
    header = next(line for line in lines if line.startswith("preset"))
    assert header.split() == ["preset", "task", "tokens", "dtype", "tokens/s", "MFU"]
    assert sum(line.startswith("nanogpt-cpu") for line in lines) == 4
    assert "measuring nanogpt-cpu, training" in printed.err
