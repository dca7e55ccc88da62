"""Compare `lm train --budget` with runs of the same time whose size and regularisation are set by hand.

    python -m tests.benchmarks.budget CORPUS [--budgets 2m 5m 10m] [--seed 1] [-- flags of lm train]

Prints a table in Markdown, with a row for each budget and each point of a grid: wall time of the whole command relative
to the budget, and bits/byte of the validation split, of the best and of the last checkpoint.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.config.training import parse_duration
from tests.benchmarks.runs import trained

GRID: dict[str, tuple[str, ...]] = {
    "nothing said": (),
    **{
        f"depth {depth}, vocabulary {vocabulary:,}, dropout {dropout}, weight decay {decay}": (
            "--depth", str(depth), "--vocab-size", str(vocabulary), "--dropout", str(dropout),
            "--weight-decay", str(decay), "--batch-tokens", "4096",
        )
        for depth, vocabulary, dropout, decay in (
            (3, 2048, 0.0, 0.1), (3, 4096, 0.0, 0.1), (4, 2048, 0.0, 0.1), (4, 4096, 0.0, 0.1), (4, 4096, 0.1, 0.1),
            (4, 4096, 0.1, 1.0), (4, 4096, 0.1, 2.0), (4, 8192, 0.1, 1.0), (5, 4096, 0.1, 1.0), (6, 8192, 0.1, 2.0),
        )
    },
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Wall time of a run relative to its budget, and bits/byte of its best and last checkpoint."""

    ratio: float
    best: float
    last: float


def outcome(corpus: Path, budget: str, flags: Sequence[str]) -> Outcome:
    """Train in a budget."""
    wall_time, found = trained(corpus, "--budget", budget, *flags)
    bits = [reading.bits_per_byte for reading in found]
    return Outcome(wall_time / parse_duration(budget), min(bits), bits[-1])


def main() -> None:
    """Train, and print row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["2m", "5m", "10m"])
    arguments, flags = parser.parse_known_args()
    print("| budget | run | wall time | best | last |\n|-|-|-|-|-|")
    for budget in arguments.budgets:
        for name, settings in GRID.items():
            found = outcome(arguments.corpus, budget, [*settings, *(flag for flag in flags if flag != "--")])
            print(f"| {budget} | {name} | {found.ratio:.1%} | {found.best:.4f} | {found.last:.4f} |", flush=True)


if __name__ == "__main__":
    main()
