"""Claims are measured as they say: alternating, each system in a process of its own; no time is asserted."""

import dataclasses
import os

import pytest

from tests.benchmarks import comparison
from tests.benchmarks.comparison import (
    Claim,
    Requirement,
    Result,
    Spread,
    System,
    Task,
    gemm_fractions,
    measure,
    speed_ups,
    speeds,
)


def fake(function, **arguments):
    return Task(f"fake_workloads.{function}", arguments, folder="tests.benchmarks")


def system(name, seconds, *, flops=None, **fields):
    return System(name, "float32", fake("work", name=name, seconds=seconds, flops=flops), **fields)


def claim(*systems, **fields):
    return Claim("fake", "no work", systems, **{"threads": 1, "rounds": 3, "setup": fake("prepare"), **fields})


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(comparison, "PAUSE", 0.0)


def logged(folder):
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def test_systems_alternate_each_in_a_process_of_its_own_with_its_cores_and_environment(tmp_path):
    results = measure(
        claim(system("a", [9, 1, 3, 2]), system("b", [9, 4, 4, 4], environment={"FAKE": "{folder}/x"})), tmp_path
    )
    assert [name for name, *_ in logged(tmp_path)] == ["a", "b"] * 4  # one warm-up, three rounds
    processes = {name: process for name, process, *_ in logged(tmp_path)}
    assert len({*processes.values(), str(os.getpid())}) == 3
    assert {cores for _, _, cores, _ in logged(tmp_path)} == {"1"}
    assert {(name, variable) for name, *_, variable in logged(tmp_path)} == {("a", "-"), ("b", f"{tmp_path}/x")}
    assert "FAKE" not in os.environ
    assert [result.seconds for result in results] == [[1, 3, 2], [4, 4, 4]]  # without the warm-up
    assert all(result.peak_bytes > 0 for result in results)


def test_a_claim_whose_time_is_over_has_two_rounds(tmp_path):
    results = measure(claim(system("a", [9, 1, 2, 3]), system("b", [9, 4, 5, 6]), seconds=0), tmp_path)
    assert [result.seconds for result in results] == [[1, 2], [4, 5]]


def test_results_are_medians_and_ranges_over_rounds():
    ours, theirs = Result(system("lm", []), [1.0, 4.0, 2.0]), Result(system("other", []), [3.0, 4.0, 8.0])
    assert speeds(claim(), ours) == Spread(2.0, 1.0, 4.0)
    assert speeds(claim(unit="ms"), ours) == Spread(2000.0, 1000.0, 4000.0)
    assert speeds(claim(amount=8, unit="tokens/s"), ours) == Spread(4.0, 2.0, 8.0)
    assert speed_ups(ours, theirs) == Spread(3.0, 1.0, 4.0)  # of the ratios, not a ratio of medians
    assert gemm_fractions(ours, theirs) is None
    counted = dataclasses.replace(ours, flops=8.0, gemm=[16.0, 4.0, 8.0])
    assert gemm_fractions(counted, counted) == Spread(0.5, 0.5, 0.5)
    assert gemm_fractions(counted, theirs) == Spread(1 / 6, 1 / 8, 1 / 2)


def test_what_is_not_installed_is_not_run(tmp_path):
    needs = [Requirement("json"), Requirement("no_such_package")]
    ours, theirs = measure(claim(system("lm", [1, 1, 1, 1]), system("other", [], needs=needs)), tmp_path)
    assert (ours.problem, theirs.problem) == (None, "not run: no_such_package missing")
    assert ours.seconds == [1, 1, 1]
    assert theirs.seconds == []


@pytest.mark.parametrize("when", ["loading", "working"])
@pytest.mark.parametrize(
    ("exits", "message"), [(False, "RuntimeError: out of paper"), (True, "the process ended with exit code 7")]
)
def test_a_baseline_that_fails_leaves_the_others_alone(tmp_path, when, exits, message):
    broken = System("broken", "float32", fake("breaking", when=when, exits=exits))
    found = measure(claim(system("lm", [1] * 4), broken, system("other", [2] * 4)), tmp_path)
    assert [result.problem for result in found] == [None, f"failed: {message}", None]
    assert speed_ups(found[0], found[2]).median == 2


@pytest.mark.medium
@pytest.mark.parametrize("in_command", [False, True])
def test_peak_memory_is_of_the_process_or_of_the_commands_it_starts(tmp_path, in_command):
    megabytes = 300
    works = [fake("filling", megabytes=size, in_command=in_command) for size in (megabytes, 1)]
    much, little = measure(claim(*(System("", "", work) for work in works), rounds=1), tmp_path)
    assert much.peak_bytes - little.peak_bytes > (megabytes - 50) << 20
    assert little.peak_bytes < megabytes << 20
