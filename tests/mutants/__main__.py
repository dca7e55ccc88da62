"""Which fraction of small changes to the code (mutants) the tests notice (kill).

    python -m tests.mutants --sample 200 --seed 1 [--module lm/model lm/files.py] [--jobs 2] [--map FILE] [--limit 30m]

Samples mutations: comparisons and arithmetic swapped, numbers off by one or doubled, `and` for `or`, min for max, True
for False, a statement or a `not` removed, two arguments swapped. Each is made in a copy of the working tree, in which
the tests that cover its function run until one fails: first the files beside the module, then others, the quickest
first, up to --seconds. Tests that never end have noticed.

Prints a line per mutant and the totals. Survivors that cannot matter are equivalent: those in the value of a tuning
constant of a module are marked as candidates; which of the rest are is for the reader.

Which test calls which functions is recorded first, by running the tests once with a tracer. --map keeps that in a file
for the next time: remove it when functions have moved. New tests beside a module are found without.
"""

import argparse
import ast
import importlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from lm.config.run_config import parse_duration
from tests.mutants.covering import LOADED_BEFORE, ROOT, Coverage, clone, copied, function_at, passes
from tests.mutants.mutations import Mutation, sample_mutations

SKIPPED = {"lm/kernels", "lm/engine", "lm/interop", "lm/benchmark", "lm/training/parallel.py"}
"""Compiled code, which each copy would compile again for minutes; and what other tools or machines are needed for."""
PATIENCE = 60.0, 3.0  # seconds, and times what the tests took before, after which they never end


def modules() -> list[str]:
    """Return what is mutated unless --module says otherwise."""
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "lm").iterdir() if path.suffix == ".py" or path.is_dir()]
    return sorted({*found, "cli"} - SKIPPED - {"lm/__pycache__"})


def outcome(mutation: Mutation, tests: Sequence[str], seconds: float, ends: float) -> str:
    """Run tests on a mutant in a clone of its tree; without any nothing notices."""
    if time.monotonic() > ends:
        return "not run"
    if not tests:
        return "NO TEST"
    with tempfile.TemporaryDirectory(prefix="lm-mutant-") as folder:
        mutated = clone(mutation.tree, Path(folder)) / mutation.path
        contents = mutation.apply(mutated.read_bytes())
        mutated.unlink()  # a hard link
        mutated.write_bytes(contents)
        for compiled in (mutated.parent / "__pycache__").glob(f"{mutated.stem}.*"):
            compiled.unlink()
        least, times = PATIENCE
        survives = passes(Path(folder), tests, plugin=None, limit=least + times * seconds)
    if not survives:
        return "killed"
    return "equivalent?" if is_tuning_constant(mutation) else "SURVIVED"


def is_tuning_constant(mutation: Mutation) -> bool:
    """Return whether a mutation is in the value of a private constant of a module."""
    for node in ast.parse((mutation.tree / mutation.path).read_bytes()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= mutation.line <= (node.end_lineno or 0):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return any(name.id.startswith("_") for each in targets for name in ast.walk(each)
                       if isinstance(name, ast.Name))  # fmt: skip
    return False


def at(mutation: Mutation) -> str | None:
    """Return the function in which a mutation is."""
    return function_at(mutation.tree / mutation.path, mutation.line)


def main() -> None:
    """Sample mutations and test the mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", nargs="+", default=modules(), metavar="PATH")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests that are not beside the module")
    parser.add_argument("--limit", default="10h", help="time after which no mutant is begun, as 30m")
    parser.add_argument("--map", type=Path, metavar="FILE")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies are removed
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lm-mutants-") as folder:
        tree = copied(Path(folder))
        coverage = Coverage.recorded(tree, given.map)
        ends = time.monotonic() + parse_duration(given.limit)
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("fork")) as pool:
            running = {
                pool.submit(outcome, each, *coverage.covering(each.path, at(each), given.seconds), ends): each
                for each in sample_mutations(tree, given.module, given.sample, given.seed)
            }
            try:
                for done in as_completed(running):
                    counts[done.result()] += 1
                    print(f"{done.result():12}{running[done]}", flush=True)
            finally:
                pool.shutdown(cancel_futures=True)
    run = counts.total() - counts["not run"]
    print(f"{counts['killed']} of {run} mutants are killed; " + ", ".join(f"{counts[name]} {name}" for name in counts))


if __name__ == "__main__":
    main()
