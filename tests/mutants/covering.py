"""Which tests call a function, and running them on a copy of the tree."""

from __future__ import annotations

import ast
import contextlib
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, count
from pathlib import Path
from types import FrameType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("lm", "cli")
LOADED_BEFORE = ("torch", "numpy", "safetensors.torch", "sacrebleu", "tokenizers", "transformers", "typer.testing")
"""What takes seconds to import: a process that has done so is forked for each run of tests."""

TESTS = ("tests/lm", "tests/cli", "tests/system")
RECORD = "coverage.json"
CALLED_ELSEWHERE = "called-elsewhere"
"""A folder with a file for each process that `tests.forked` started: the test, then the functions it called."""
COMPILED = ("tests/lm/kernels", "tests/lm/engine")
"""Tests of compiled code, which are left out: in each copy of the tree it would be compiled again, for minutes."""
_NOT_FOUND = 9
Functions = set[tuple[str, str]]
"""Files, and the qualified names of functions there."""


@dataclass(eq=False)
class Recorder:
    """A plugin that notes which test calls which functions of the packages in a tree, and how long it takes.

    A test with parameters is one; what a fixture of several tests calls counts for each of them. What a process calls
    that `tests.forked` starts counts for all tests of the file, which may share it.
    """

    tree: Path
    called: Functions = field(default_factory=set)
    shared: dict[tuple[str, str], Functions] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    run: dict[str, Functions] = field(default_factory=lambda: defaultdict(set))
    failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._prefixes = tuple(f"{self.tree / package}/" for package in PACKAGES)
        self._numbers = count()

    def pytest_sessionstart(self) -> None:
        from tests import forked

        (self.tree / CALLED_ELSEWHERE).mkdir()
        forked.wrap = self._wrap

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        _clear_caches()
        self.called, began = set(), time.process_time()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            used = (called for (fixture, base), called in self.shared.items()
                    if fixture in item.fixturenames and item.nodeid.startswith(base))  # fmt: skip
            name = _function(item.nodeid)
            self.run[name].update(self.called, *used)
            self.seconds[name] += time.process_time() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        before, self.called = self.called, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared[fixturedef.argname, fixturedef.baseid].update(self.called)
            self.called |= before

    def pytest_runtest_logreport(self, report: pytest.TestReport):
        if report.failed:
            self.failed.add(_function(report.nodeid))

    def _call(self, frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code.co_filename.startswith(self._prefixes):
            self.called.add(_called(frame))

    def _wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return what writes the calls of a function that another process runs."""
        from tests.mutants.covering import write_calls  # as that process will find it: not as it was loaded first

        record = self.tree / CALLED_ELSEWHERE / str(next(self._numbers))
        return partial(write_calls, record, os.environ["PYTEST_CURRENT_TEST"], self._prefixes, function)

    def pytest_sessionfinish(self) -> None:
        """Write the tests that passed with their seconds, those that failed, and for each function its tests."""
        for record in (self.tree / CALLED_ELSEWHERE).iterdir():
            test, *called = record.read_text().splitlines()
            for name in self.run:
                if name.partition("::")[0] == test.partition("::")[0]:
                    self.run[name].update(
                        (file, function) for file, _, function in (line.partition("\t") for line in called)
                    )
        passed = [name for name in self.run if name not in self.failed]
        functions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, name in enumerate(passed):
            for file, function in self.run[name]:
                functions[os.path.relpath(file, self.tree)][function].append(number)
        tests = [(name, round(self.seconds[name], 3)) for name in passed]
        text = json.dumps({"tests": tests, "failed": sorted(self.failed), "functions": functions})
        (self.tree / RECORD).write_text(text)


def _called(frame: FrameType) -> tuple[str, str]:
    """Return the file and the qualified name of the outermost function of a frame."""
    return frame.f_code.co_filename, frame.f_code.co_qualname.split(".<locals>")[0]


def write_calls(
    path: Path, test: str, prefixes: tuple[str, ...], function: Callable[..., object], *arguments: str
) -> None:
    """Call a function in this process, and write at once what it calls first: the process may be killed."""
    with path.open("w", buffering=1) as record:
        print(test, file=record)
        known: Functions = set()

        def write(frame: FrameType, _event: str, _argument: object) -> None:
            if frame.f_code.co_filename.startswith(prefixes) and (called := _called(frame)) not in known:
                known.add(called)
                print(*called, sep="\t", file=record)

        threading.settrace(write)
        sys.settrace(write)
        function(*arguments)


def _clear_caches() -> None:
    """Or only the first test would call what a function that remembers its results calls."""
    for module in [module for name, module in sys.modules.items() if name.startswith("lm.")]:
        for value in vars(module).values():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()


def _function(test: str) -> str:
    return test.partition("[")[0]


@dataclass(frozen=True)
class Coverage:
    """What a `Recorder` has written."""

    tests: list[tuple[str, float]]
    failed: list[str]
    functions: dict[str, dict[str, list[int]]]

    @classmethod
    def recorded(cls, tree: Path, kept: Path | None) -> Coverage:
        """Read it from a file; else run the tests in a clone of a tree once, and write the file if one is named."""
        if kept is not None and kept.is_file():
            return cls(**json.loads(kept.read_text()))
        with tempfile.TemporaryDirectory() as folder:
            copy = clone(tree, Path(folder))
            tests = [*TESTS, *(f"--ignore={folder}" for folder in COMPILED)]
            passes(copy, tests, plugin=Recorder(copy), limit=None)
            if not (copy / RECORD).is_file():
                raise SystemExit((copy / "output.txt").read_text()[-2000:])
            text = (copy / RECORD).read_text()
        if kept is not None:
            kept.write_text(text)
        return cls(**json.loads(text))

    def covering(self, path: str, function: str | None, most_seconds: float) -> tuple[list[str], float]:
        """Return arguments for pytest, and seconds: the files beside a module, then single tests, the quickest first.

        Of a function that no test calls in its own process, and of None: all files of the folder, which may start
        others, and tests that call any function of its module.
        """
        functions = self.functions.get(path, {})
        numbers, name = functions.get(function or ""), f"test_{Path(path).stem}*.py"
        files = sorted((ROOT / "tests" / path).parent.glob("test_*.py" if numbers is None else name))
        beside = [str(file.relative_to(ROOT)) for file in files]
        if numbers is None:
            numbers = list({*chain(*functions.values())})
        tests = sorted((self.tests[number] for number in numbers), key=lambda test: test[1])
        others = [test for test in tests if test[0].partition("::")[0] not in beside]
        totals = accumulate(seconds for _, seconds in others)
        quick = [test for test, total in zip(others, totals, strict=True) if total <= most_seconds]
        expected = sum(seconds for name, seconds in self.tests if name.partition("::")[0] in beside)
        names = [*beside, *(name for name, _ in quick)]
        deselected = [f"--deselect={name}" for name in self.failed] if names else []
        return [*names, *deselected], expected + sum(seconds for _, seconds in quick)


def function_at(file: Path, line: int) -> str | None:
    """Return the qualified name of the outermost function, or method of a class, around a line."""
    names, body = [], ast.parse(file.read_bytes()).body
    while True:
        around = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)
                  and node.lineno <= line <= (node.end_lineno or 0)]  # fmt: skip
        if not around:
            return None
        (node,) = around
        names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            return ".".join(names)
        body = node.body


def copied(to: Path) -> Path:
    """Copy the working tree, as git knows it, and compile its modules; return the folder it is copied to."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    passes(to, ["--collect-only", *TESTS], plugin=None, limit=None, compiles=True)
    return to


def clone(tree: Path, to: Path) -> Path:
    """Clone a tree by hard links; return the folder of the clone."""
    return Path(shutil.copytree(tree, to, copy_function=os.link, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns("output.txt", "temporary")))  # fmt: skip


def passes(
    tree: Path, arguments: Sequence[str], *, plugin: Recorder | None, limit: float | None, compiles: bool = False
) -> bool:
    """Return whether tests pass in a copy of the tree, within so many seconds; a plugin lets all of them run."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_run(tree, arguments, plugin, compiles=compiles))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    ends = time.monotonic() + (limit or float("inf"))
    try:
        while time.monotonic() < ends:
            if (found := os.waitpid(child, os.WNOHANG))[0]:
                if os.waitstatus_to_exitcode(found[1]) == _NOT_FOUND:
                    raise SystemExit("a test of the map is no longer there: remove its file")
                return found[1] == 0
            time.sleep(0.05)
    except BaseException:
        _kill(child)
        raise
    _kill(child)
    return False


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has not made its group yet, or has just ended
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(group, signal.SIGKILL)
    os.waitpid(group, 0)


def _run(tree: Path, arguments: Sequence[str], plugin: Recorder | None, *, compiles: bool) -> int:
    """In a process of its own: no module of the project is loaded, what is printed goes to a file."""
    os.setpgid(0, 0)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "lm", "cli", "corpora"}]:
        del sys.modules[name]
    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    sys.dont_write_bytecode, tempfile.tempdir = not compiles, None
    (tree / "temporary").mkdir()
    os.environ.update(PYTHONPATH=str(tree), TMPDIR=str(tree / "temporary"))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if compiles else "1"
    output = os.open(tree / "output.txt", os.O_RDWR | os.O_CREAT)
    for stream in range(3):
        os.dup2(output, stream)
    options = ["-x" if plugin is None else "-q", "-mnot slow", "-Wignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, *arguments], [] if plugin is None else [plugin])
    if code == pytest.ExitCode.USAGE_ERROR and b"ERROR: not found:" in (tree / "output.txt").read_bytes():
        return _NOT_FOUND
    return 0 if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED} else 1
