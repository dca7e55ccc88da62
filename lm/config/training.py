"""How a model is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lm.config.options import CheckedConfig, option
from lm.errors import UsageError

Schedule = Literal["cosine", "linear", "inverse-sqrt", "wsd", "constant"]
Criterion = Literal["loss", "bleu"]
OptimizerKind = Literal["adamw", "muon"]

MOST_ROWS = 2**40
"""The most sequences or tokens of a batch: larger sizes would overflow before memory is allocated."""
LENGTHS = ("steps", "epochs", "tokens", "budget")
_UNITS = {"h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class TrainingConfig(CheckedConfig):
    """How a model is trained. Exactly one of steps, epochs, tokens and budget says for how long."""

    steps: int | None = option(None, "Train for this many optimizer steps.", minimum=1)
    epochs: float | None = option(None, "Train for this many passes over the training split.", minimum=0)
    tokens: int | None = option(None, "Train on this many tokens.", minimum=1)
    budget: str | None = option(
        None,
        "Time from start to end, or added to a resumed run (90s, 10m, 1h30m); without a preset it also chooses "
        "vocabulary, size and batch.",
    )
    batch_size: int = option(32, "Sequences in one optimizer step.", minimum=1, maximum=MOST_ROWS)
    batch_tokens: int | None = option(
        None, "Tokens in one optimizer step, instead of sequences.", minimum=1, maximum=MOST_ROWS
    )
    batch_warmup: int = option(
        0, "Steps over which the batch grows from a quarter of its sequences to all of them.", minimum=0
    )
    micro_batch_size: int | None = option(
        None,
        "Sequences in one pass through the model; gradients of several accumulate. A resumed run may change it. "
        "[default: what fits into a GPU's memory, all at once elsewhere].",
        minimum=1,
    )
    learning_rate: float = option(1e-3, "Peak learning rate.", minimum=0, maximum=1e9)
    schedule: Schedule = option("cosine", "Shape of the learning rate after warm-up.")
    warmup_steps: int = option(50, "Steps over which the learning rate rises from zero.", minimum=0)
    final_learning_rate: float = option(0.1, "Where the schedule ends, as a share of the peak.", minimum=0, maximum=1)
    decay_fraction: float = option(0.2, "Share of the steps that the wsd schedule decays over.", minimum=0, maximum=1)
    optimizer: OptimizerKind = option(
        "adamw", "AdamW for all weights, or Muon for the matrices of the blocks and AdamW for the rest."
    )
    beta1: float = option(0.9, "AdamW: decay of the mean gradient.", minimum=0, maximum=0.9999)
    beta2: float = option(0.95, "AdamW: decay of the mean squared gradient.", minimum=0, maximum=0.99999)
    epsilon: float = option(1e-8, "AdamW: added to the denominator.", minimum=0)
    weight_decay: float = option(0.1, "Decay of matrices; vectors are never decayed.", minimum=0, maximum=1e9)
    clip: float = option(1.0, "Gradient clipping: maximum norm; 0 disables it.", minimum=0)
    evaluate_every: int = option(
        250, "Steps between evaluations on the whole validation split; 0 only at the end.", minimum=0
    )
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints; 0 only at the end [default: at each evaluation].", minimum=0
    )
    keep: int = option(3, "Checkpoints kept: this many of the latest, and the best; 0 keeps all.", minimum=0)
    patience: int | None = option(
        None, "Stop when this many evaluations in a row have brought no lower loss [default: never].", minimum=1
    )
    decay_patience: int | None = option(
        None,
        "Start the decay of the learning rate when this many evaluations in a row have brought no lower loss; patience "
        "counts from there [default: never].",
        minimum=1,
    )
    label_smoothing: float = option(
        0.0, "Share of each target spread over the vocabulary; never when evaluating.", minimum=0, maximum=0.99
    )
    source_loss: float = option(
        0.0,
        "With --decoder-only: what a token of the source counts in the loss, where one of the target counts 1, as both "
        "did in Liu et al. 2018. Only targets are evaluated.",
        minimum=0,
        maximum=1000,
    )
    r_drop: float = option(
        0.0,
        "R-Drop: each batch goes through twice with other dropout, and this weighs how far the two may differ; "
        "a step takes twice as long.",
        minimum=0,
    )
    expert_balance: float = option(
        0.01, "Weight of the loss that spreads tokens evenly over experts, where there are any.", minimum=0
    )
    ema: float = option(
        0.0,
        "Decay of a moving average of the weights, which is then what is evaluated and saved; 0 keeps none.",
        minimum=0,
        maximum=0.99999,
    )
    best_by: Criterion = option(
        "loss", "What makes a checkpoint the best, and counts for --patience: the validation loss, or BLEU."
    )
    bleu_sentences: int = option(
        2000, "Sentences of the validation split that are translated at each evaluation, for BLEU.", minimum=0
    )
    sample: tuple[str, ...] = option(
        (), "Continue (or translate) this after each evaluation, to see the model learn. Can be repeated."
    )
    masked_share: float = option(
        0.15,
        "With --objective masked: share of the tokens that are to be predicted; of these, 80% are masked, 10% replaced "
        "by any other, and 10% left as they are.",
        minimum=0.001,
        maximum=0.999,
    )
    whole_words: bool = option(False, "With --objective masked: mask all tokens of a word or none.")
    compile: bool = option(
        False, "Compile the model with torch.compile, which pays off in long runs; a resumed run may change it."
    )
    checkpoint_activations: bool = option(
        False,
        "Activation checkpointing: recompute the activations of each block in the backward pass: far less memory "
        "for a step that takes a third longer; a resumed run may change it.",
    )
    seed: int = option(0, "Seed of the initial weights, the data order and dropout.", minimum=0, maximum=2**64 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise UsageError(f"give only one of {', '.join(lengths)}", settings=lengths)
        if self.epochs == 0:
            raise UsageError("epochs must be more than 0", settings=("epochs",))
        if self.budget is not None:
            parse_duration(self.budget)
            if self.schedule != "wsd" or self.decay_fraction == 1:
                raise UsageError(
                    "with a budget the decay of the learning rate begins when the clock says so, which takes the "
                    "schedule wsd and a decay_fraction below 1",
                    settings=("schedule", "decay_fraction"),
                )

    @property
    def passes(self) -> int:
        """Return the number of forward passes per batch."""
        return 2 if self.r_drop else 1


def parse_duration(text: str) -> float:
    """Parse a duration such as 90s, 10m or 1h30m into seconds; UsageError if invalid or zero."""
    parts = _FORM.fullmatch(text.strip())
    total = (
        sum(float(part) * unit for part, unit in zip(parts.groups("0"), _UNITS.values(), strict=True)) if parts else 0
    )
    if not total:
        raise UsageError(f"a time is written like 90s, 10m or 1h30m, not {text!r}", settings=("budget",))
    return total
