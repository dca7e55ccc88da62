"""What `lm train --budget` makes of a time, against runs of the same time whose size was set by hand.

    python -m tests.benchmarks.budget CORPUS [--budgets 2m 5m 10m] [--seed 1] [-- flags of lm train]

For each budget: the run that is given nothing else, then a grid of sizes and of what holds it back. Prints a table in
Markdown: wall time of the whole command as a ratio of the budget, and bits per byte of the whole validation split, of
the best checkpoint, and of the last.
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
    """Of a run: wall time as a ratio of its budget, and bits per byte at best and in the end."""

    ratio: float
    best: float
    last: float


def outcome(corpus: Path, budget: str, flags: Sequence[str]) -> Outcome:
    """Train in a budget."""
    wall_time, found = trained(corpus, "--budget", budget, *flags)
    bits = [reading.bits_per_byte for reading in found]
    return Outcome(wall_time / parse_duration(budget), min(bits), bits[-1])


def main() -> None:
    """Run after run, row after row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["2m", "5m", "10m"])
    given, flags = parser.parse_known_args()
    print("| budget | run | wall time | best | last |\n|-|-|-|-|-|")
    for budget in given.budgets:
        for name, settings in GRID.items():
            found = outcome(given.corpus, budget, [*settings, *(flag for flag in flags if flag != "--")])
            print(f"| {budget} | {name} | {found.ratio:.1%} | {found.best:.4f} | {found.last:.4f} |", flush=True)


if __name__ == "__main__":
    main()
