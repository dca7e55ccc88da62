"""Which share of small changes to the core the tests notice.

    python -m tests.benchmarks.mutations --count 200 --seed 1 [--module lm/model lm/files.py] [--jobs 2] [--map FILE]

Draws changes at random (a comparison turned, a number off by one or doubled, + for -, * for /, `and` for `or`, min for
max, True for False, a `not` or a call left out), makes each in a copy of the working tree, and runs the tests that
cover the line there until one fails: first the files beside the module, then others, the quickest first, as far as
--seconds go. Tests that never end have noticed. Annotations, messages, decorators, assertions and `strict=` are left
as they are.

Prints a line for each change as it is done, and the share. Which of those unnoticed cannot matter is for the reader.

Which test runs which lines is recorded first, by running those of tests/lm and tests/cli once with a tracer, in about
twice their time; what fails there is left out, as tests of Ctrl-C do where it is ignored. --map keeps that in a file
for the next time: remove it when lines of the core have moved. New tests beside a module are found without. A change
costs some seconds, an unnoticed one up to a minute and a half.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import os
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.benchmarks.covering import LOADED_BEFORE, ROOT, Coverage, copied, passes

CORE = ["lm/model", "lm/decoding", "lm/evaluation", "lm/optim", "lm/budget", "lm/training"]
CORE += [
    "lm/text",
    "lm/tokenizer",
    "lm/corpus",
    "lm/data",
    "lm/pseudorandom.py",
    "lm/checkpoint.py",
    "lm/run_folder.py",
    "lm/files.py",
    "lm/hardware.py",
]
OPERATORS = {
    "<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
    "is not": ["is"], "is": ["is not"], "not in": ["in"], "in": ["not in"], "and": ["or"], "or": ["and"],
    "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "//": ["*"], "%": ["//"], "**": ["*"], "@": ["*"],
    "<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"], "^": ["&"],
}  # fmt: skip
OPERATOR = re.compile(r"\b(?:is not|not in|is|in|and|or)\b|[<>=!]=|\*\*|//|<<|>>|[-+*/%<>&|^@]")
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEFT_ALONE = {"annotation", "returns", "decorator_list"}
PATIENCE = 60.0, 2.0  # seconds, and times what the tests took before, after which they are held to be endless


@dataclass(frozen=True)
class Change:
    """Bytes `start` to `end` of a file become `after`."""

    path: str
    line: int
    start: int
    end: int
    after: str

    def made(self, source: bytes) -> bytes:
        """The file's contents with it."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        source = (ROOT / self.path).read_bytes()
        first = source.rfind(b"\n", 0, self.start) + 1
        last = first + len(source[first:].partition(b"\n")[0])
        before, after = source[first : self.start], source[self.end : max(last, self.end)]
        whole = f"{before.decode()}[[{source[self.start : self.end].decode()} -> {self.after}]]{after.decode()}"
        return f"{self.path}:{self.line}: {' '.join(whole.split())}"


def changes(path: Path) -> Iterator[Change]:
    """All that could be made in a file."""
    source = path.read_bytes()
    lines = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]

    def span(node: ast.AST) -> tuple[int, int]:
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    for node in _nodes(ast.parse(source)):
        for start, end, afters in _places(node, span, source):
            line = source.count(b"\n", 0, start) + 1
            yield from (Change(str(path.relative_to(ROOT)), line, start, end, after) for after in afters)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr | ast.Assert | ast.Raise) or getattr(child, "arg", None) == "strict":
                continue
            if isinstance(child, ast.AST) and name not in LEFT_ALONE:
                yield from _nodes(child)


def _places(node: ast.AST, span, source: bytes) -> Iterator[tuple[int, int, list[str]]]:
    """Where a node can be changed: the bytes, and what may take their place."""
    match node:
        case ast.Compare(left=left, comparators=rest) | ast.BoolOp(values=[left, *rest]):
            yield from _operators([left, *rest], span, source)
        case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str())):
            return  # a path
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            yield from _operators([left, right], span, source)
        case ast.UnaryOp(op=ast.Not()):
            yield span(node)[0], span(node)[0] + len("not"), [""]
        case ast.Constant(value=bool(value)):
            yield *span(node), [str(not value)]
        case ast.Constant(value=int(value)):
            yield *span(node), [str(value + 1), str(value - 1)]
        case ast.Constant(value=float(value)):
            yield *span(node), [str(2 * value or 1.0), str(value / 2 or -1.0)]
        case ast.Expr(value=ast.Call()):
            yield *span(node), ["None"]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in OPPOSITES:
            end = span(node.func)[1]
            yield end - len(name), end, [OPPOSITES[name]]


def _operators(operands: Sequence[ast.AST], span, source: bytes) -> Iterator[tuple[int, int, list[str]]]:
    for left, right in itertools.pairwise(operands):
        start, end = span(left)[1], span(right)[0]
        if found := OPERATOR.search(source[start:end].decode("latin-1")):
            yield start + found.start(), start + found.end(), OPERATORS[found[0]]


def drawn(modules: Sequence[str], count: int, seed: int) -> list[Change]:
    """Changes at random, at most one in a place, each of which leads to another syntax tree."""
    roots = (ROOT / name for name in modules)
    files = {path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))}
    found = [change for path in sorted(files) for change in changes(path)]
    random.Random(seed).shuffle(found)
    places = {(change.path, change.start): change for change in found}
    return list(itertools.islice(filter(_is_another_tree, places.values()), count))


def _is_another_tree(change: Change) -> bool:
    source = (ROOT / change.path).read_bytes()
    try:
        return ast.dump(ast.parse(change.made(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def is_noticed(change: Change, tests: Sequence[str], seconds: float) -> bool:
    """Make one change in a copy, and run tests there that take so long; without any, nothing notices."""
    if not tests:
        return False
    with tempfile.TemporaryDirectory() as folder:
        path = copied(Path(folder)) / change.path
        path.write_bytes(change.made(path.read_bytes()))
        least, times = PATIENCE
        return not passes(Path(folder), tests, plugin=None, limit=least + times * seconds)


def main() -> None:
    """Draw, make and test the changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", nargs="+", default=CORE, metavar="PATH")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests that are not beside the module")
    parser.add_argument("--map", type=Path, metavar="FILE")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    coverage, chosen = Coverage.recorded(given.map), drawn(given.module, given.count, given.seed)
    tests = [coverage.covering(change.path, change.line, given.seconds) for change in chosen]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("fork")) as pool:
        running = {
            pool.submit(is_noticed, change, *with_what): change for change, with_what in zip(chosen, tests, strict=True)
        }
        try:
            for done in as_completed(running):
                print("noticed  " if done.result() else "UNNOTICED", running[done], flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    noticed = sum(done.result() for done in running)
    print(f"{noticed} of {len(running)} changes are noticed: {noticed / len(running):.1%}")


if __name__ == "__main__":
    main()
