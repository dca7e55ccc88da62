"""Measure the claims of README.md and docs/ about speed, against the tools that they name: `make bench`.

    make bench                                        # all claims: about 20 minutes on 2 cores
    make bench CLAIM=decode                           # some of them: CLAIM="decode train"
    make bench TINYSHAKESPEARE=data/input.txt         # where the corpus of the claim nanogpt is
    python -m tests.benchmarks decode train --json    # the same without make

Prints one Markdown table to stdout, and progress to stderr. Systems whose package or program is not installed are "not
run"; docs/benchmarks.md says how to build llama-bench. Each system has a process of its own, pinned to as many cores as
it has threads; all do their work once per round, alternating, after a warm-up. "lm is faster" is the median over rounds
of how many times as long the baseline took. "% of GEMM" are the FLOP/s of the model relative to those of a matmul of
1024³ in the same dtype with the same threads, measured in the same round; in float32 where that is faster. Peak memory
is that of the process, packages and baseline's runtime included. Exits with 1 if a system that is installed failed.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.claims import all_claims, selected
from tests.benchmarks.comparison import Claim, Result, Task, call_in_process, measure
from tests.benchmarks.report import as_json, describe_machine, markdown

CORPUS_PLACES = ("data/tinyshakespeare/input.txt",)
"""Where `lm corpus get tinyshakespeare` puts it."""


def main() -> None:
    """Measure the chosen claims and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="names in the first column [default: all]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table, with all rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds that count [default: each claim's own]")
    parser.add_argument(
        "--tinyshakespeare", type=Path, metavar="FILE", default=os.environ.get("TINYSHAKESPEARE") or CORPUS_PLACES[0],
        help="corpus of the claim nanogpt [default: TINYSHAKESPEARE, else %(default)s]",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:  # names don't depend on the machine
        selected(all_claims(training_dtype="float32", corpus=None), arguments.claims)
    except ValueError as error:
        parser.error(str(error))
    machine = call_in_process(Task("machine.describe"))
    claims = selected(
        all_claims(training_dtype=machine["training_dtype"], corpus=arguments.tinyshakespeare.absolute()),
        arguments.claims,
    )
    described = describe_machine(instructions=machine["instructions"])
    try:
        results = measure_all(claims, rounds=arguments.rounds)
    except KeyboardInterrupt:
        sys.exit(130)
    print(as_json(described, results) if arguments.json else markdown(described, results))
    sys.exit(any((each.problem or "").startswith("failed") for _, found in results for each in found))


def measure_all(claims: Sequence[Claim], *, rounds: int | None) -> list[tuple[Claim, list[Result]]]:
    """Measure claims one after another, with a temporary folder for their models."""
    results = []
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as folder:
        for number, claim in enumerate(claims, start=1):
            print(f"{number}/{len(claims)} {claim.name}: {claim.title}", file=sys.stderr, flush=True)
            results.append((claim, measure(claim, Path(folder), rounds=rounds)))
    return results


if __name__ == "__main__":
    main()
