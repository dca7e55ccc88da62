"""What Muon adds to a training step: the default step of a preset against the same step with AdamW, alternating.

    python -m tests.benchmarks.optimizer_step [tiny depth-4] [--against newton-schulz] [--seconds 10] [--threads 2]

Both sides train in the arithmetic that `lm train` chooses for the default step here, which is said; --batch-tokens is
the preset's, and 4,096 for those of a depth, as under a budget of some minutes. The ratio is the median of the rounds.
"""

import argparse
import dataclasses
import statistics
from contextlib import ExitStack

from lm.config.presets import PRESETS, build_run_config
from lm.config.run_config import RunConfig
from lm.data.batch import batch_rows
from lm.training.step_timing import random_data_run, time_interleaved, training_step_timer

BATCH_TOKENS = 4096
OTHERS = {"adamw": {"optimizer": "adamw"}, "newton-schulz": {"orthogonalisation": "newton-schulz"}}


def configuration(preset: str, threads: int | None) -> RunConfig:
    """The default step of a preset."""
    training = {} if preset in PRESETS else {"batch_tokens": BATCH_TOKENS}
    return build_run_config(preset, {"training": training, "hardware": {"threads": threads}})


def compare(preset: str, against: str, *, seconds: float, threads: int | None) -> None:
    """Let the sides take turns, and print what came of it."""
    config = configuration(preset, threads)
    rows = batch_rows(config)
    with ExitStack() as stack:
        muon = stack.enter_context(random_data_run(config, rows=rows))
        chosen = muon.hardware
        training = dataclasses.replace(config.training, **OTHERS[against])
        same = dataclasses.replace(config.hardware, dtype=chosen.dtype, threads=chosen.threads)
        config = dataclasses.replace(config, training=training, hardware=same)
        other = stack.enter_context(random_data_run(config, rows=rows))
        rounds = time_interleaved([training_step_timer(muon), training_step_timer(other)], seconds=seconds)
    ours, theirs = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(with_muon / with_other for with_muon, with_other in rounds)
    print(
        f"{preset}: {rows} x {config.model.context_length} tokens, {chosen.dtype}, {chosen.threads} threads,", end=" "
    )
    print(
        f"Muon in {chosen.optimizer_dtype}: {ours:.0f} ms a step, {against} {theirs:.0f} ms, ratio {ratio:.2f}", end=" "
    )
    print(f"({len(rounds)} rounds)")


def main() -> None:
    """Each preset in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=["tiny", "depth-4"])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each side")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--against", choices=OTHERS, default="adamw")
    given = parser.parse_args()
    for preset in given.presets:
        compare(preset, given.against, seconds=given.seconds, threads=given.threads)


if __name__ == "__main__":
    main()
