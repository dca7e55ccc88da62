"""The history of the lectures as an experiment: each system on the same pairs for the same time.

    python -m tests.benchmarks.history DATA [--minutes 20] [--seeds 1 2] [--only SYSTEM...] [--text FILE] [--page FILE]

DATA holds Multi30k's train and val, each as .en and .de. Minutes are of one thread's processor time. What is done is
kept in the folder and not done again, so the command may be stopped and started, and several may share the work: each
takes the runs that it is told. --text is what attention patterns are measured on. --page writes what there is as
Markdown, with pictures in a folder beside it; --only without a name does nothing else.
"""

import argparse
from pathlib import Path

from tests.benchmarks.attention_patterns import LENGTHS
from tests.benchmarks.history.lengths import Lengths
from tests.benchmarks.history.page import page
from tests.benchmarks.history.systems import SYSTEMS
from tests.benchmarks.history.translation import Experiment


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/history"))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", default="auto", help="as of lm train; auto is chosen for each system by measuring")
    keys = [system.key for system in SYSTEMS]
    parser.add_argument("--only", nargs="*", default=keys, metavar="SYSTEM", help=f"of {', '.join(keys)}; none at all")
    parser.add_argument("--text", type=Path, help="to measure attention patterns against the length of a context on")
    parser.add_argument("--text-steps", type=int, default=100, help="of 8,192 tokens each")
    parser.add_argument("--page", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(keys):
        parser.error(f"no system {', '.join(sorted(unknown))}")
    experiment = Experiment(arguments.data, arguments.out, seconds=60 * arguments.minutes, dtype=arguments.dtype)
    for seed in arguments.seeds:
        for system in SYSTEMS:
            if system.key in arguments.only:
                print(experiment.do(system, seed), flush=True)
    lengths = None
    if arguments.text:
        lengths = Lengths(arguments.text, arguments.out / "lengths.json", steps=arguments.text_steps)
        lengths.measure(LENGTHS)
    if arguments.page:
        arguments.page.write_text(page(experiment, lengths, arguments.page.parent / "pictures"), encoding="utf-8")


if __name__ == "__main__":
    main()
