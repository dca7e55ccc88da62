"""Claims about speed, and how they are measured: each system in a process of its own, alternating.

This module and those that describe claims don't import torch, so that the process that starts the others stays small:
Linux counts the memory of a parent towards the peak memory of its children.
"""

import importlib
import importlib.util
import multiprocessing
import os
import re
import resource
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

WORKLOADS = "tests.benchmarks.workloads"
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""The environment in which glibc keeps freed memory, as `lm` asks it to."""
PAUSE = 0.3
"""Seconds between measurements, after which the threads of the last one no longer spin."""


_LEAST_ROUNDS = 2


@dataclass(frozen=True)
class Task:
    """A function by its name, which only the process that calls it imports.

    Attributes:
        name: "module.function", in `tests.benchmarks.workloads`.
        arguments: keywords of the function.
        folder: where modules are looked for, for tests.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    folder: str = WORKLOADS

    def load(self) -> Callable[..., Any]:
        """Import and return the function."""
        module, _, function = self.name.rpartition(".")
        return getattr(importlib.import_module(f"{self.folder}.{module}"), function)


@dataclass(frozen=True)
class Requirement:
    """What a system needs, and how to get it.

    Attributes:
        name: of a package, a program on the path, or a file.
        kind: which of them.
        path: of a file.
    """

    name: str
    kind: Literal["package", "program", "file"] = "package"
    path: Path | None = None

    def is_met(self) -> bool:
        """Whether it is there."""
        if self.kind == "package":
            return importlib.util.find_spec(self.name) is not None
        if self.kind == "program":
            return shutil.which(self.name) is not None
        return self.path is not None and self.path.is_file()


@dataclass(frozen=True)
class System:
    """One side of a claim.

    Attributes:
        name: "lm", or the baseline.
        dtype: of its matmuls.
        task: a function of (folder, threads, and its arguments) that returns a `Workload`.
        needs: without these it is not run.
        environment: variables of its process.
    """

    name: str
    dtype: str
    task: Task
    needs: Sequence[Requirement] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """One comparison.

    Attributes:
        name: what selects it on the command line; several claims may share it.
        title: model and work.
        systems: ours first; ratios are to it.
        threads: of each system, whose process is pinned to as many cores.
        amount: what the work amounts to in the unit, for rates; None if the result is the time.
        unit: of the result.
        setup: called once before, in a process of its own, with the folder of the models.
        rounds: in which each system does its work once.
        seconds: after these no further round begins, once two count.
        warm_up: rounds that don't count, before them.
        gemm: the dtype of the 1024³ matmul that ours is compared with, if its workload counts FLOPs.
    """

    name: str
    title: str
    systems: Sequence[System]
    threads: int
    amount: float | None = None
    unit: str = "s"
    setup: Task | None = None
    rounds: int = 5
    seconds: float = 20.0
    warm_up: int = 1
    gemm: str | None = None


class Workload(NamedTuple):
    """What a system does when it is measured.

    Attributes:
        run: does the work once, and returns the seconds it took.
        flops: FLOPs of the work by the model's arithmetic, if they are known.
        runs_commands: whether commands do the work, whose memory counts instead of the process's own.
    """

    run: Callable[[], float]
    flops: float | None = None
    runs_commands: bool = False


class WorkerError(Exception):
    """A process could not do its work; says why."""


@dataclass
class Result:
    """What was measured of one system.

    Attributes:
        system: the system.
        seconds: of each round.
        gemm: FLOP/s of a matmul, measured beside ours in each round.
        flops: of the work.
        peak_bytes: peak resident memory of its process, or of the largest command that it started.
        problem: why there is no result.
    """

    system: System
    seconds: list[float] = field(default_factory=list)
    gemm: list[float] = field(default_factory=list)
    flops: float | None = None
    peak_bytes: int = 0
    problem: str | None = None


class Spread(NamedTuple):
    """Median and range of some values."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return median and range."""
    return Spread(statistics.median(values), min(values), max(values))


def speeds(claim: Claim, result: Result) -> Spread:
    """Return the result in the unit of the claim."""
    per_second = claim.amount is not None
    scale = 1000.0 if claim.unit == "ms" else 1.0
    return spread([claim.amount / each if per_second else scale * each for each in result.seconds])


def speed_ups(ours: Result, theirs: Result) -> Spread:
    """Return how many times as fast ours is, round by round."""
    return spread([other / own for own, other in zip(ours.seconds, theirs.seconds, strict=True)])


def gemm_fractions(ours: Result, result: Result) -> Spread | None:
    """Return FLOP/s as a fraction of those of a matmul in the same round; None if FLOPs are not counted."""
    if ours.flops is None or not ours.gemm:
        return None
    return spread([ours.flops / seconds / rate for seconds, rate in zip(result.seconds, ours.gemm, strict=True)])


def measure(claim: Claim, folder: Path, *, rounds: int | None = None) -> list[Result]:
    """Measure all systems of a claim, alternating.

    Args:
        claim: what is compared.
        folder: for models, shared by claims.
        rounds: instead of the claim's own number.
    """
    results = [Result(system, problem=missing(system)) for system in claim.systems]
    ours = results[0]
    if ours.problem is None and claim.setup is not None:
        _attempt(ours, lambda: call_in_process(claim.setup, folder))
    if ours.problem is None:
        # all are started before any is waited for
        workers = [(each, Worker(each.system, claim, folder)) for each in results if each.problem is None]
        for result, worker in workers:
            _attempt(result, partial(worker.load, result))
        began = time.perf_counter()
        for number in range(claim.warm_up + (rounds or claim.rounds)):
            if number >= claim.warm_up + _LEAST_ROUNDS and time.perf_counter() - began > claim.seconds:
                break
            for result, worker in workers:
                if ours.problem is None and result.problem is None:
                    _attempt(result, partial(worker.measure, result, counts=number >= claim.warm_up))
        for result, worker in workers:
            if result.problem is None:
                _attempt(result, partial(worker.end, result))
    if ours.problem is not None:
        for result in results[1:]:
            result.problem = result.problem or "not run: lm is not run"
    return results


def _attempt(result: Result, step: Callable[[], object]) -> None:
    try:
        step()
    except (WorkerError, BrokenPipeError) as error:
        result.problem = f"failed: {error}"


def missing(system: System) -> str | None:
    """Return what a system lacks, as a sentence; None if it has all it needs."""
    for each in system.needs:
        if not each.is_met():
            return f"not run: {each.name} missing"
    return None


class Worker:
    """A system in a process of its own, which works when it is its turn and sleeps otherwise."""

    def __init__(self, system: System, claim: Claim, folder: Path) -> None:
        """Start loading it."""
        gemm = claim.gemm if system is claim.systems[0] else None
        defaults = {"OMP_NUM_THREADS": str(claim.threads), "TQDM_DISABLE": "1", "TMPDIR": "{folder}"}
        environment = {**defaults, **system.environment}
        environment = {name: value.replace("{folder}", str(folder)) for name, value in environment.items()}
        self._process, self._connection = _start(
            _serve, system.task, folder, claim.threads, gemm, environment=environment
        )

    def load(self, result: Result) -> None:
        """Wait until it is loaded."""
        result.flops = self._receive()

    def measure(self, result: Result, *, counts: bool) -> None:
        """Let it work once."""
        time.sleep(PAUSE)
        self._connection.send("work")
        seconds, rate = self._receive()
        if counts:
            result.seconds.append(seconds)
            if rate is not None:
                result.gemm.append(rate)

    def end(self, result: Result) -> None:
        """End the process, which tells its peak memory."""
        self._connection.send("end")
        result.peak_bytes = self._receive()
        self._process.join()

    def _receive(self) -> Any:
        return _receive(self._process, self._connection)


def call_in_process(task: Task, *arguments: object) -> Any:
    """Return what a function returns, called in a process of its own; WorkerError if it raises."""
    process, connection = _start(_call, task, arguments, environment={})
    answer = _receive(process, connection)
    process.join()
    return answer


def _start(target: Callable[..., None], *given: object, environment: Mapping[str, str]) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *given), daemon=True)
    with _environment(environment):
        process.start()
    theirs.close()
    return process, ours


@contextmanager
def _environment(variables: Mapping[str, str]):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _receive(process: Any, connection: Connection) -> Any:
    try:
        kind, answer = connection.recv()
    except EOFError:
        process.join()
        raise WorkerError(f"the process ended with exit code {process.exitcode}") from None
    if kind == "error":
        process.join()
        raise WorkerError(answer)
    return answer


def _call(connection: Connection, task: Task, arguments: Sequence[object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _report_errors(connection):
        connection.send(("done", task.load()(*arguments, **task.arguments)))


def _serve(connection: Connection, task: Task, folder: Path, threads: int, gemm: str | None) -> None:
    """Load a system, and answer "work" with its seconds and the rate of a matmul, and "end" with its peak memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the process that waits for this one
    with _report_errors(connection):
        pin(threads)
        work = task.load()(folder, threads, **task.arguments)
        matmul = None
        if gemm is not None and work.flops is not None:
            matmul = Task("gemm.timer").load()(gemm, threads)
        connection.send(("done", work.flops))
        while connection.recv() != "end":
            connection.send(("done", (work.run(), None if matmul is None else matmul())))
        connection.send(("done", peak_memory(of_commands=work.runs_commands)))


@contextmanager
def _report_errors(connection: Connection):
    """Send an exception as one line; its traceback goes to stderr."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        connection.send(("error", f"{type(error).__name__}: {lines[0]}"))


def pin(threads: int) -> None:
    """Pin this process and the commands that it starts to as many cores as it has threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def peak_memory(*, of_commands: bool = False) -> int:
    """Return the peak resident memory in bytes of this process, or of the largest command that it started."""
    status = Path("/proc/self/status")
    if not of_commands and status.is_file():  # getrusage counts what a parent held when it forked
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"))[0])
    who = resource.RUSAGE_CHILDREN if of_commands else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
