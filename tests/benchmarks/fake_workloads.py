"""Work that takes no time, for tests of how claims are measured."""

import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.comparison import Workload


def prepare(folder: Path) -> None:
    """Write a file that `work` needs."""
    (folder / "prepared").touch()


def work(folder: Path, threads: int, *, name: str, seconds: list[float], flops: float | None = None) -> Workload:
    """Return given seconds one after another, and note name, process, cores and variables in the file `log`."""
    assert (folder / "prepared").exists()
    left = iter(seconds)

    def run() -> float:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
        with (folder / "log").open("a") as log:
            print(name, os.getpid(), cores, os.environ.get("FAKE", "-"), file=log)
        return next(left)

    return Workload(run, flops)


def breaking(folder: Path, threads: int, *, when: str, exits: bool = False) -> Workload:
    """Fail when it is loaded or when it works, by an error or by the end of the process."""

    def fail() -> float:
        if exits:
            os._exit(7)
        raise RuntimeError("out of paper")

    if when == "loading":
        fail()
    return Workload(fail)


def filling(folder: Path, threads: int, *, megabytes: int, in_command: bool) -> Workload:
    """Fill some memory, in this process or in a command that it starts."""

    def run() -> float:
        if in_command:
            subprocess.run([sys.executable, "-c", f"b'1' * ({megabytes} << 20)"], check=True)
        else:
            bytes(b"1" * (megabytes << 20))
        return 1.0

    return Workload(run, runs_commands=in_command)
