"""Ablations of the training recipe: the same run with one ingredient changed, on each corpus, for each seed.

    python -m tests.benchmarks.recipe CORPUS... [--seeds 1 2] [--only NAME...] [-- flags of lm train]

With --set training.tokens=among the flags, batches that start smaller take more steps.

Prints a table in Markdown: bits per byte of the whole validation split at the end (the mean of the seeds, and its
difference to the recipe), and the seconds of a step relative to the recipe's.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.runs import trained

RECIPE = "the recipe"
CHANGES: dict[str, tuple[str, ...]] = {
    RECIPE: (),
    "AdamW for all weights, 3e-3": ("--optimizer", "adamw", "--learning-rate", "3e-3"),
    "half the learning rate": ("--learning-rate", "0.01"),
    "twice the learning rate": ("--learning-rate", "0.04"),
    "cosine to a tenth": ("--set", "training.schedule=cosine", "--set", "training.final_learning_rate_fraction=0.1"),
    "constant, then linear over the last half": (
        "--set",
        "training.schedule=wsd",
        "--set",
        "training.decay_fraction=0.5",
    ),
    "learned positions": ("--positions", "learned"),
    "no QK-norm": (
        "--set",
        "model.qk_norm=false",
    ),
    "RMSNorm": ("--set", "model.norm=rmsnorm"),
    "SwiGLU": ("--set", "model.activation=swiglu"),
    "ReLU²": ("--set", "model.activation=relu2"),
    "no zero initialisation": (
        "--set",
        "model.zero_init=false",
    ),
    "an output layer of its own": (
        "--set",
        "model.tie_embeddings=false",
    ),
    "soft cap of 15": ("--set", "model.softcap=15"),
    "no value residual": (
        "--set",
        "model.value_residual=false",
    ),
    "embedding shortcut": (
        "--set",
        "model.embedding_shortcut=true",
    ),
    "no weight decay": ("--weight-decay", "0"),
    "a batch that grows over 100 steps": ("--set", "training.batch_warmup=100"),
}


def measured(corpus: Path, flags: Sequence[str], seeds: Sequence[int]) -> tuple[float, float]:
    """Return the mean bits/byte at the end, and the median step time in seconds."""
    bits, seconds = [], []
    for seed in seeds:
        _, [*_, last] = trained(corpus, "--seed", str(seed), "--evaluate-every", "0", *flags)
        bits.append(last.bits_per_byte)
        seconds.append(last.seconds / last.step)
    return statistics.mean(bits), statistics.median(seconds)


def main() -> None:
    """Measure and print row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=list(CHANGES), choices=list(CHANGES), metavar="NAME")
    arguments, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"]
    for corpus in arguments.corpora:
        print(f"\n{corpus.name}\n\n| change | bits per byte | difference | time of a step |\n|-|-|-|-|", flush=True)
        base: tuple[float, float] | None = None
        for name in dict.fromkeys([RECIPE, *arguments.only]):
            bits, seconds = measured(corpus, [*flags, *CHANGES[name]], arguments.seeds)
            base = base or (bits, seconds)
            print(f"| {name} | {bits:.4f} | {bits - base[0]:+.4f} | {seconds / base[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
