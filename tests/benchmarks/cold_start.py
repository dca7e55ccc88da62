"""From nothing to the first token: `lm generate` in a new process, against `import torch` in one.

    python -m tests.benchmarks.cold_start RUN [--dtypes auto float32 int8] [--rounds 9]

Prints the CPU time that each takes, user and system, from start to exit, the median of interleaved rounds;
and the median over rounds of how many times what `import torch` takes that is. One thread. `auto` and `int8` are as
good as `lm compile RUN` has made them. Bytecode is kept in a folder of its own, made by a round that doesn't count.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_TORCH = "import torch"


def processor_seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """What a process takes, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """A line for each type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["auto", "float32", "int8"])
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    first = ["-m", "cli", "generate", str(given.run), "The", "--max-tokens", "1", "--seed", "1", "--dtype"]
    commands = {_TORCH: [sys.executable, "-c", _TORCH]}
    commands |= {f"lm, {dtype}": [sys.executable, *first, dtype] for dtype in given.dtypes}
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": folder, "OMP_NUM_THREADS": "1"}
        rounds = [
            {name: processor_seconds(command, environment) for name, command in commands.items()}
            for _ in range(1 + given.rounds)
        ][1:]
    for name in commands:
        ratio = statistics.median(taken[name] / taken[_TORCH] for taken in rounds)
        print(f"{name:<14} {statistics.median(taken[name] for taken in rounds):.2f} s {ratio:>6.2f}")


if __name__ == "__main__":
    main()
