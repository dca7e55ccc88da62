"""`lm bench`: what it prints; none of these tests is about speed."""

import contextlib
import io
import json
import math

import pytest
import torch
import transformers

from cli import bench_report
from cli.main import run
from lm.benchmark.hardware_limits import HardwareLimits
from lm.benchmark.speed import Measurement, Timings
from lm.config.hardware import HardwareConfig
from lm.hardware import Hardware, matmul_size

QUICK = ["--device", "cpu", "--dtype", "float32", "--seconds", "0", "--batch-size", "1"]


def measured(task: str = "training", *, dtype: str = "float32", timings: Timings, **changes) -> Measurement:
    hardware = Hardware("cpu", dtype, 2)
    usual = {"rows": 4, "length": 1000, "flops": 3e9, "limit": 1e10}
    return Measurement("tiny", task, hardware=hardware, timings=timings, **{**usual, **changes})


LIMITS = HardwareLimits(flops={"float32": 1.2e11, "int8": 2.5e11}, memory_bandwidth=2e10, matrix_size=1024)


def test_tables_have_the_limits_and_the_speed_of_both_systems(capsys):
    results = [measured(timings=Timings(3, 2.0, 3.0, 1.456)), measured("prefill", timings=Timings(3, 0.5, 1.0, 2.0))]
    bench_report.print_tables(HardwareConfig("cpu", "float32", 2), LIMITS, results, comparing=True)
    machine, *tables = capsys.readouterr().out.splitlines()
    assert machine == f"cpu, 2 threads, torch {torch.__version__}, transformers {transformers.__version__}"
    assert tables == [
        "",
        "limit                      measured",
        "matmul of 1,024³, float32  120 GFLOP/s",
        "matmul of 1,024³, int8     250 GFLOP/s",
        "memory bandwidth           20 GB/s",
        "",
        "preset  task      tokens    dtype    tokens/s    MFU  Hugging Face  ratio",
        "tiny    training  4 x 1000  float32     2,000  15.0%         1,333   1.46",
        "tiny    prefill   4 x 1000  float32     8,000  60.0%         4,000   2.00",
    ]


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


def test_a_table_on_stdout_and_notes_on_stderr(capsys):
    assert run(["bench", "nanogpt-cpu", "--no-compare", *QUICK]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith("cpu, ")
    header = next(line for line in lines if line.startswith("preset"))
    assert header.split() == ["preset", "task", "tokens", "dtype", "tokens/s", "MFU"]
    assert sum(line.startswith("nanogpt-cpu") for line in lines) == 4
    assert "measuring nanogpt-cpu, training" in printed.err
    assert "\x1b" not in printed.err
