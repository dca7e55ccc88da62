"""How soon a small model of Shakespeare's characters is as good as nanoGPT's, in shares of the time that one takes.

    python -m tests.benchmarks.shakespeare tinyshakespeare.txt [--seeds 1 2 3] [-- flags of lm train]

nanoGPT's recipe for a CPU (0.80 M parameters, context 64, 2000 steps of 12 windows, AdamW, float32) ends at 1.886 nats
a character over the whole validation split. Its time is that of a plain loop over Hugging Face's GPT-2 of that shape,
100 steps before ours and 100 after, scaled to 2000. Ours is a run of `lm train` with a schedule fixed beforehand; its
clock runs from the first batch to the first evaluation that is no worse, evaluations aside.

--large is about its recipe for a GPU (10.65 M parameters, context 256, 5000 steps of 64 windows), which ends at 1.4697
and would take a CPU of two cores some 14 hours: what a budget of 38 minutes leads to, and the wall time of all.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from lm.benchmark import hugging_face
from lm.config.presets import build_run_config
from lm.training.step_timing import random_data_run
from tests.benchmarks.runs import trained

NANOGPT_LOSS, NANOGPT_STEPS = 1.886, 2000
TIMED_STEPS = 100
FLAGS = ("--depth", "2", "--kind", "char", "--context", "64", "--batch-size", "12", "--steps", "400",
         "--evaluate-every", "20")  # fmt: skip
LARGE_FLAGS = ("--depth", "5", "--kind", "char", "--context", "256", "--budget", "38m", "--batch-tokens", "4096",
               "--dropout", "0.1", "--weight-decay", "0.3", "--decay-fraction", "0.8",
               "--evaluate-every", "250")  # fmt: skip


def nanogpt_seconds() -> float:
    """A step of nanoGPT's recipe, by the stand-in; the median of many."""
    config = build_run_config("nanogpt-cpu", {"hardware": {"dtype": "float32"}})
    with random_data_run(config, rows=config.training.batch_size) as run:
        step = hugging_face.training_timer(run)
        step()
        return statistics.median(step() for _ in range(TIMED_STEPS))


def crossing(corpus: Path, seed: int, flags: Sequence[str]) -> tuple[float, float]:
    """Seconds of training until the loss is nanoGPT's (infinite if it never is), and the loss at the end."""
    _, found = trained(corpus, *FLAGS, "--seed", str(seed), *flags)
    crossed = [reading.seconds for reading in found if reading.loss <= NANOGPT_LOSS]
    return min(crossed, default=float("inf")), found[-1].loss


def large(corpus: Path, seeds: Sequence[int], flags: Sequence[str]) -> None:
    """Train with each seed for 38 minutes."""
    losses = []
    for seed in seeds:
        seconds, found = trained(corpus, *LARGE_FLAGS, "--seed", str(seed), *flags)
        losses.append(min(reading.loss for reading in found))
        print(f"seed {seed}: {losses[-1]:.4f} in {seconds / 60:.1f} minutes of wall time")
    print(f"mean: {statistics.mean(losses):.4f}")


def main() -> None:
    """Time the stand-in, train with each seed, time the stand-in again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("flags", nargs="*", help="flags of lm train, after --")
    given = parser.parse_args()
    if given.large:
        large(given.corpus, given.seeds or [1, 2], given.flags)
        return
    seeds = given.seeds or [1, 2, 3]
    a_step = [nanogpt_seconds()]
    found = [crossing(given.corpus, seed, given.flags) for seed in seeds]
    a_step.append(nanogpt_seconds())
    theirs = NANOGPT_STEPS * statistics.mean(a_step)
    steps = ", ".join(f"{1000 * each:.1f}" for each in a_step)
    print(f"nanoGPT's {NANOGPT_STEPS} steps: {theirs:.1f} s ({steps} ms a step)")
    for seed, (seconds, loss) in zip(seeds, found, strict=True):
        crossed = f"{NANOGPT_LOSS} after {seconds:.1f} s, 1/{theirs / seconds:.1f} of that"
        print(f"seed {seed}: {crossed}; {loss:.4f} in the end")
    ours = statistics.median(seconds for seconds, _ in found)
    print(f"median: {ours:.1f} s, 1/{theirs / ours:.1f}")


if __name__ == "__main__":
    main()
