"""What experts cost: the step of a preset against the same with experts, of which each token goes through one.

    python -m tests.benchmarks.experts [tiny small] [--experts 8] [--optimizer adamw] [--seconds 20] [--rows 16]

Both sides train in float32 in one process, on one thread, and take turns; their parameters that are active a token
differ by the gates alone. The ratio is the median of the rounds.
"""

import argparse
import statistics
from contextlib import ExitStack

from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.data.batch import batch_rows
from lm.model.cost import active_parameters, parameters_by_part
from lm.training.step_timing import random_data_run, time_interleaved, training_step_timer


def configuration(preset: str, *, experts: int, optimizer: str) -> RunConfig:
    """A preset with so many experts in each block, and one thread."""
    hardware = {"device": "cpu", "dtype": "float32", "threads": 1}
    return build_run_config(
        preset, {"model": {"experts": experts}, "training": {"optimizer": optimizer}, "hardware": hardware}
    )


def compare(preset: str, *, experts: int, optimizer: str, rows: int | None, seconds: float) -> None:
    """Let the sides take turns, and print what came of it."""
    configs = [configuration(preset, experts=number, optimizer=optimizer) for number in (experts, 0)]
    rows = rows or batch_rows(configs[0])
    with ExitStack() as stack:
        runs = [stack.enter_context(random_data_run(config, rows=rows)) for config in configs]
        rounds = time_interleaved([training_step_timer(run) for run in runs], seconds=seconds)
    sparse, dense = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(ours / theirs for ours, theirs in rounds)
    model = configs[0].model
    print(f"{preset}, {optimizer}: {rows} x {model.context_length} tokens,", end=" ")
    print(f"{active_parameters(model):,} of {sum(parameters_by_part(model).values()):,} parameters active:", end=" ")
    print(f"{experts} experts {sparse:.0f} ms a step, none {dense:.0f} ms, ratio {ratio:.2f} ({len(rounds)} rounds)")


def main() -> None:
    """Compare each preset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=["tiny"])
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    parser.add_argument("--rows", type=int, help="sequences of a step [default: the preset's]")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each side, about")
    arguments = parser.parse_args()
    for preset in arguments.presets:
        compare(
            preset,
            experts=arguments.experts,
            optimizer=arguments.optimizer,
            rows=arguments.rows,
            seconds=arguments.seconds,
        )


if __name__ == "__main__":
    main()
