"""`lm bench`: what it prints, and what it refuses; none of these tests is about speed."""

import contextlib
import io
import json
import math

import pytest

from cli.main import run
from lm.benchmark import hugging_face
from lm.hardware import matmul_size

QUICK = ["--device", "cpu", "--dtype", "float32", "--seconds", "0", "--batch-size", "1"]


@pytest.fixture
def lonely(monkeypatch):
    """A machine without transformers."""
    monkeypatch.setattr(hugging_face, "is_installed", lambda: False)


def test_comparing_needs_something_to_compare_with(capsys, lonely):
    assert run(["bench", "nanogpt-cpu", *QUICK, "--compare"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "lm: comparing with Hugging Face needs transformers: pip install transformers\n"


@pytest.fixture(scope="module")
def described() -> dict:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(["bench", "nanogpt-cpu", *QUICK, "--no-compare", "--json"]) == 0
    return json.loads(printed.getvalue())


def test_json_has_the_machine_its_limits_and_each_figure(described):
    assert described["device"] == "cpu"
    assert described["threads"] >= 1
    assert described["transformers"] is None
    limits = described["limits"]
    assert limits["matrix_size"] == matmul_size("cpu")
    assert limits["flops"]["float32"] > 0
    assert limits["memory_bandwidth"] > 0
    measured = described["measurements"]
    assert [(each["preset"], each["task"], each["rows"]) for each in measured] == [
        ("nanogpt-cpu", "training", 1),
        ("nanogpt-cpu", "prefill", 1),
        ("nanogpt-cpu", "decoding", 1),
        ("nanogpt-cpu", "decoding", 16),
    ]


def test_figures_in_json_fit_together(described):
    for each in described["measurements"]:
        assert each["hugging_face"] is None
        rate = each["tokens_per_second"]
        assert rate > 0
        assert math.isfinite(rate)
        assert rate == pytest.approx(each["rows"] * each["length"] / each["seconds"])
        achieved = each["flops"] / each["seconds"]
        assert each["utilisation"] == pytest.approx(achieved / described["limits"]["flops"][each["matmul_dtype"]])


def test_a_table_on_stdout_and_notes_on_stderr(capsys, lonely):
    assert run(["bench", "nanogpt-cpu", *QUICK]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("cpu, ")
    assert ["limit", "measured"] in [line.split() for line in lines]
    assert f"matmul of {matmul_size('cpu'):,}³, float32" in printed.out
    header = next(line for line in lines if line.startswith("preset"))
    assert header.split() == ["preset", "task", "tokens", "dtype", "tokens/s", "MFU"]
    assert sum(line.startswith("nanogpt-cpu") for line in lines) == 4
    assert "measuring nanogpt-cpu, training" in printed.err
    assert "transformers is not installed" in printed.err
    assert "nanogpt-cpu: lm train takes float32 and 1 thread here" in printed.err
    assert "\x1b" not in printed.err
