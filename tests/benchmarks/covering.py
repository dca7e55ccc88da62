"""Which tests run a line of the core, and running them on a copy of the tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from types import FrameType

import pytest

ROOT = Path(__file__).parents[2]
LOADED_BEFORE = ("torch", "numpy", "safetensors.torch", "sacrebleu", "tokenizers", "transformers", "typer.testing")
"""What takes seconds to import: a process that has done so is forked for each run of tests."""

RECORD = "coverage.json"
COMPILED = ("tests/lm/kernels", "tests/lm/engine")
"""Tests of compiled code, which are left out: in each copy of the tree it would be compiled again, for minutes."""
_NOT_FOUND = 9
Lines = set[tuple[str, int]]


@dataclass(eq=False)
class Recorder:
    """A plugin that notes which test runs which lines below a folder, and how long it takes.

    A test with parameters is one; what a fixture of several tests runs counts for each of them.
    """

    folder: Path
    lines: Lines = field(default_factory=set)
    shared: dict[tuple[str, str], Lines] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    run: dict[str, Lines] = field(default_factory=lambda: defaultdict(set))
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        _forget_what_is_cached()
        self.lines, began = set(), time.perf_counter()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            used = (lines for (fixture, base), lines in self.shared.items()
                    if fixture in item.fixturenames and item.nodeid.startswith(base))  # fmt: skip
            name = _function(item.nodeid)
            self.run[name].update(self.lines, *used)
            self.seconds[name] += time.perf_counter() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        before, self.lines = self.lines, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared[fixturedef.argname, fixturedef.baseid].update(self.lines)
            self.lines |= before

    def pytest_runtest_logreport(self, report: pytest.TestReport):
        if report.failed:
            self.failed.add(_function(report.nodeid))

    def _call(self, frame: FrameType, _event: str, _argument: object):
        return self._line if frame.f_code.co_filename.startswith(str(self.folder)) else None

    def _line(self, frame: FrameType, _event: str, _argument: object):
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def pytest_sessionfinish(self) -> None:
        """Write down the tests that passed with their seconds, those that failed, and for each line who runs it."""
        passed = [name for name in self.run if name not in self.failed]
        lines: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, name in enumerate(passed):
            for file, line in self.run[name]:
                lines[os.path.relpath(file, self.folder.parent)][line].append(number)
        tests = [(name, round(self.seconds[name], 3)) for name in passed]
        text = json.dumps({"tests": tests, "failed": sorted(self.failed), "lines": lines})
        (self.folder.parent / RECORD).write_text(text)


def _forget_what_is_cached() -> None:
    """Or only the first test would run the lines of a function that remembers its results."""
    for module in [module for name, module in sys.modules.items() if name.startswith("lm.")]:
        for value in vars(module).values():
            if callable(forget := getattr(value, "cache_clear", None)):
                forget()


def _function(test: str) -> str:
    return test.partition("[")[0]


@dataclass(frozen=True)
class Coverage:
    """What a `Recorder` has written."""

    tests: list[tuple[str, float]]
    failed: list[str]
    lines: dict[str, dict[str, list[int]]]

    @classmethod
    def recorded(cls, kept: Path | None) -> Coverage:
        """What is in a file, or else, by running all tests of the modules once, what is to be kept there."""
        if kept is None or not kept.is_file():
            with tempfile.TemporaryDirectory() as folder:
                copy = copied(Path(folder))
                tests = ["tests/lm", "tests/cli", *(f"--ignore={folder}" for folder in COMPILED)]
                passes(copy, tests, plugin=Recorder(copy / "lm"), limit=None)
                if not (copy / RECORD).is_file():
                    raise SystemExit((copy / "output.txt").read_text()[-2000:])
                text = (copy / RECORD).read_text()
            if kept is None:
                return cls(**json.loads(text))
            kept.write_text(text)
        return cls(**json.loads(kept.read_text()))

    def covering(self, path: str, line: int, most_seconds: float) -> tuple[list[str], float]:
        """Arguments for pytest, and seconds: the files beside a module, then single tests, the quickest first.

        Where no test runs a line, as outside of functions, those are taken that run any of its module.
        """
        files = sorted((ROOT / "tests" / path).parent.glob(f"test_{Path(path).stem}*.py"))
        beside, lines = [str(file.relative_to(ROOT)) for file in files], self.lines.get(path, {})
        numbers = lines.get(str(line)) or set(chain(*lines.values()))
        tests = sorted((self.tests[number] for number in numbers), key=lambda test: test[1])
        others = [test for test in tests if test[0].partition("::")[0] not in beside]
        totals = accumulate(seconds for _, seconds in others)
        quick = [
            (name, seconds) for (name, seconds), total in zip(others, totals, strict=True) if total <= most_seconds
        ]
        expected = sum(seconds for name, seconds in self.tests if name.partition("::")[0] in beside)
        names = [*beside, *(name for name, _ in quick)]
        deselected = [f"--deselect={name}" for name in self.failed] if names else []
        return [*names, *deselected], expected + sum(seconds for _, seconds in quick)


def copied(to: Path) -> Path:
    """The working tree, as git knows it; returns the folder it is copied to."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


def passes(tree: Path, arguments: Sequence[str], *, plugin: Recorder | None, limit: float | None) -> bool:
    """Whether tests pass in a copy of the tree, within so many seconds; all are run only for a plugin."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_run(tree, arguments, plugin))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    ends = time.monotonic() + (limit or float("inf"))
    while time.monotonic() < ends:
        if (found := os.waitpid(child, os.WNOHANG))[0]:
            if os.waitstatus_to_exitcode(found[1]) == _NOT_FOUND:
                raise SystemExit("a test of the map is no longer there: remove its file")
            return found[1] == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run(tree: Path, arguments: Sequence[str], plugin: Recorder | None) -> int:
    """In a process of its own: no module of the project is loaded, what is printed goes to a file."""
    os.setpgid(0, 0)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "lm", "cli", "corpora"}]:
        del sys.modules[name]
    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    sys.dont_write_bytecode, tempfile.tempdir = True, None
    (tree / "temporary").mkdir()
    os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(tree / "temporary"))
    output = os.open(tree / "output.txt", os.O_RDWR | os.O_CREAT)
    for stream in range(3):
        os.dup2(output, stream)
    options = ["-x" if plugin is None else "-q", "-Wignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, *arguments], [] if plugin is None else [plugin])
    if code == pytest.ExitCode.USAGE_ERROR and b"ERROR: not found:" in (tree / "output.txt").read_bytes():
        return _NOT_FOUND
    return 0 if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED} else 1
