"""Plain `lm train FILE --budget …`: wall time of the whole command, and the loss of the validation split.

    python -m tests.benchmarks.budget FILE [--budgets 5m] [--seeds 1 2 3] [-- flags of lm train]

Prints a table in Markdown, with a row for each run: wall time relative to the budget, and the best evaluation, in
disjoint windows. The validation split of a single text of a megabyte is its end, about the last tenth.
"""

import argparse
import math
from pathlib import Path

from lm.config.training import parse_duration
from tests.benchmarks.runs import trained


def main() -> None:
    """Train, and print row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["5m"])
    parser.add_argument("--seeds", nargs="+", default=["1", "2", "3"])
    arguments, flags = parser.parse_known_args()
    text = arguments.file.read_bytes()
    nats_per_bit = math.log(2) * len(text) / len(text.decode())
    print("| budget | seed | wall time | bits/byte | nats/character |\n|-|-|-|-|-|", flush=True)
    for budget in arguments.budgets:
        for seed in arguments.seeds:
            given = [flag for flag in flags if flag != "--"]
            seconds, found = trained(arguments.file, "--budget", budget, "--seed", seed, *given)
            bits, ratio = min(reading.bits_per_byte for reading in found), seconds / parse_duration(budget)
            print(f"| {budget} | {seed} | {ratio:.1%} | {bits:.4f} | {bits * nats_per_bit:.4f} |", flush=True)


if __name__ == "__main__":
    main()
