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
Orthogonalisation = Literal["gram-newton-schulz", "newton-schulz"]

MOST_ROWS = 2**40
"""The most sequences or tokens of a batch: larger sizes would overflow before memory is allocated."""
LENGTHS = ("steps", "epochs", "tokens", "budget")
_UNITS = {"h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class TrainingConfig(CheckedConfig):
    """How a model is trained. Exactly one of steps, epochs, tokens and budget says for how long."""

    steps: int | None = option(None, "Training length in optimizer steps.", minimum=1, unit="STEPS")
    epochs: float | None = option(None, "Training length in passes over the training split.", minimum=0, unit="EPOCHS")
    tokens: int | None = option(None, "Training length in tokens.", minimum=1, unit="TOKENS")
    budget: str | None = option(None, "Training time, such as 10m or 1h30m.", unit="DURATION", default_text="automatic")
    batch_size: int = option(32, "Sequences per step.", minimum=1, maximum=MOST_ROWS)
    batch_tokens: int | None = option(
        None, "Tokens per step, instead of --batch-size.", minimum=1, maximum=MOST_ROWS, unit="TOKENS"
    )
    batch_warmup: int = option(
        0, "Steps over which the batch grows, from a quarter.", minimum=0, unit="STEPS", advanced=True
    )
    micro_batch_size: int | None = option(
        None, "Gradient accumulation: sequences per pass.", minimum=1, default_text="all that fit"
    )
    learning_rate: float = option(1e-3, "Peak learning rate.", minimum=0, maximum=1e9, unit="LR")
    schedule: Schedule = option("cosine", "Learning-rate schedule.")
    warmup_steps: int = option(50, "Learning-rate warm-up.", minimum=0, unit="STEPS")
    final_learning_rate_fraction: float = option(
        0.1,
        "Final learning rate / peak.",
        minimum=0,
        maximum=1,
        unit="FRACTION",
        advanced=True,
        requires="training.schedule=cosine|linear|wsd",
    )
    decay_fraction: float = option(
        0.2,
        "Schedule wsd: decay fraction.",
        minimum=0,
        maximum=1,
        unit="FRACTION",
        advanced=True,
        requires="training.schedule=wsd",
    )
    optimizer: OptimizerKind = option("adamw", "Optimizer; muon: AdamW for embeddings and vectors.")
    orthogonalisation: Orthogonalisation = option(
        "gram-newton-schulz",
        "Muon: iteration; newton-schulz: slower, rounds differently.",
        advanced=True,
        requires="training.optimizer=muon",
    )
    beta1: float = option(0.9, "AdamW: β1.", minimum=0, maximum=0.9999, advanced=True)
    beta2: float = option(0.95, "AdamW: β2.", minimum=0, maximum=0.99999, advanced=True)
    epsilon: float = option(1e-8, "AdamW: ε.", minimum=0, advanced=True)
    weight_decay: float = option(0.1, "Weight decay of matrices.", minimum=0, maximum=1e9)
    clip: float = option(1.0, "Gradient clipping: maximum norm; 0: off.", minimum=0, unit="NORM")
    evaluate_every: int = option(
        250, "Evaluation interval; 0: only at the end.", minimum=0, unit="STEPS", group="Evaluation"
    )
    checkpoint_every: int | None = option(
        None,
        "Checkpoint interval; 0: only at the end.",
        minimum=0,
        unit="STEPS",
        default_text="evaluate_every",
        group="Evaluation",
    )
    keep: int = option(3, "Keep the latest N checkpoints and the best; 0: all.", minimum=0, group="Evaluation")
    patience: int | None = option(
        None,
        "Stop after N evaluations without improvement.",
        minimum=1,
        group="Evaluation",
    )
    decay_patience: int | None = option(
        None,
        "Start the decay after N evaluations without improvement.",
        minimum=1,
        group="Evaluation",
        advanced=True,
    )
    label_smoothing: float = option(0.0, "Label smoothing.", minimum=0, maximum=0.99, unit="RATE")
    source_loss: float = option(
        0.0,
        "Loss weight of source tokens, with decoder_only.",
        minimum=0,
        maximum=1000,
        unit="WEIGHT",
        group="Translation",
        advanced=True,
        requires="model.decoder_only",
    )
    r_drop: float = option(
        0.0, "R-Drop: weight of the KL term.", default_text="off", minimum=0, unit="WEIGHT", advanced=True
    )
    expert_balance: float = option(
        0.01,
        "MoE: weight of the load-balancing loss.",
        minimum=0,
        unit="WEIGHT",
        group="Model",
        advanced=True,
        requires="model.experts",
    )
    ema: float = option(
        0.0,
        "EMA decay; averaged weights are evaluated and saved.",
        default_text="off",
        minimum=0,
        maximum=0.99999,
        unit="DECAY",
    )
    best_by: Criterion = option(
        "loss", "Criterion of the best checkpoint.", group="Translation", requires="training.bleu_sentences"
    )
    bleu_sentences: int = option(
        2000, "Sentences translated per evaluation, for BLEU.", minimum=0, group="Translation", advanced=True
    )
    sample: tuple[str, ...] = option((), "Prompt to continue at each evaluation.", group="Evaluation")
    masking_rate: float = option(
        0.15,
        "Masking rate of --objective masked.",
        minimum=0.001,
        maximum=0.999,
        unit="RATE",
        group="Model",
        advanced=True,
        requires="model.objective=masked",
    )
    whole_words: bool = option(
        False,
        "Whole-word masking, for --objective masked.",
        group="Model",
        advanced=True,
        requires="model.objective=masked",
    )
    compile: bool = option(False, "Use torch.compile; pays off in long runs.", group="Hardware")
    checkpoint_activations: bool = option(False, "Activation checkpointing: less memory, slower.", group="Hardware")
    seed: int = option(0, "Seed of weights, data order and dropout.", minimum=0, maximum=2**64 - 1)

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
    def forward_passes(self) -> int:
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
