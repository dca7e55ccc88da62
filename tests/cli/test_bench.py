"""`lm bench`: what it prints; none of these tests is about speed."""

import json

from cli.main import run

QUICK = ["bench", "nanogpt-cpu", "--device", "cpu", "--dtype", "float32", "--seconds", "0", "--batch-size", "1"]


def test_each_task_is_measured(capsys):
    assert run([*QUICK, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measurements"]
    shapes = [("training", 1), ("prefill", 1), ("decoding", 1), ("decoding", 16)]
    assert [(each["task"], each["rows"]) for each in measured] == shapes
    assert run(QUICK) == 0
    printed = capsys.readouterr()
    header, *rows = printed.out.splitlines()
    assert header.split() == ["preset", "task", "rows", "length", "dtype", "seconds", "tokens/s"]
    assert sum(line.startswith("nanogpt-cpu") for line in rows) == 4
    assert "measuring nanogpt-cpu" in printed.err
