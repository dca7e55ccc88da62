"""How a model is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import LENGTHS, Config, Count, Fraction, LargeCount, Natural, Positive, Rate, Seed
from lm.errors import UsageError

Schedule = Literal["cosine", "linear", "inverse-sqrt", "wsd", "constant"]
Criterion = Literal["loss", "bleu"]
OptimizerKind = Literal["adamw", "muon"]

MOST_ROWS = 2**40
"""The most sequences or tokens of a batch: larger sizes would overflow before memory is allocated."""
_Rows = Annotated[int, Meta(ge=1, le=MOST_ROWS)]
_Scale = Annotated[float, Meta(ge=0, le=1e9)]
_Decay = Annotated[float, Meta(ge=0, le=0.99999)]
_UNITS = {"h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class TrainingConfig(Config):
    """How a model is trained. Exactly one of steps, epochs, tokens and budget says for how long.

    Settings:
        steps: Training length in optimizer steps.
        epochs: Training length in passes over the training split.
        tokens: Training length in tokens.
        budget: Training time, such as 10m or 1h30m; default by the corpus.
        batch_size: Sequences per step.
        batch_tokens: Tokens per step, instead of batch_size.
        micro_batch_size: Gradient accumulation: sequences per pass; default all that fit.
        learning_rate: Peak learning rate.
        schedule: Learning-rate schedule.
        warmup_steps: Learning-rate warm-up.
        final_learning_rate_fraction: Final learning rate / peak.
        decay_fraction: Schedule wsd: decay fraction.
        optimizer: Optimizer; muon: AdamW for embeddings and vectors.
        beta1: AdamW: β1.
        beta2: AdamW: β2.
        epsilon: AdamW: ε.
        weight_decay: Weight decay of matrices.
        clip: Gradient clipping: maximum norm; 0: off.
        evaluate_every: Evaluation interval in steps; 0: only at the end.
        checkpoint_every: Checkpoint interval; 0: at the end; default evaluate_every.
        keep_checkpoints: Keep the latest N checkpoints and the best; 0: all.
        patience: Stop after N evaluations without improvement.
        decay_patience: Start the decay after N evaluations without improvement.
        label_smoothing: Label smoothing.
        r_drop: R-Drop: weight of the KL term; 0: off.
        expert_balance: MoE: weight of the load-balancing loss.
        ema: EMA decay; averaged weights are evaluated and saved; 0: off.
        best_by: Criterion of the best checkpoint.
        bleu_sentences: Sentences translated per evaluation, for BLEU.
        sample: Prompt to continue at each evaluation. Repeatable.
        masking_rate: Masked models: masking rate.
        compile: Use torch.compile; pays off in long runs.
        gradient_checkpointing: Recompute activations: less memory, slower.
        tensorboard: Write TensorBoard files.
        seed: Seed of weights, data order and dropout.
    """

    steps: LargeCount | None = None
    epochs: Positive | None = None
    tokens: LargeCount | None = None
    budget: str | None = None
    batch_size: _Rows = 32
    batch_tokens: _Rows | None = None
    micro_batch_size: _Rows | None = None
    learning_rate: _Scale = 1e-3
    schedule: Schedule = "cosine"
    warmup_steps: Natural = 50
    final_learning_rate_fraction: Annotated[Fraction, "training.schedule=cosine|linear|wsd"] = 0.1
    decay_fraction: Annotated[Fraction, "training.schedule=wsd"] = 0.2
    optimizer: OptimizerKind = "adamw"
    beta1: Annotated[float, Meta(ge=0, le=0.9999)] = 0.9
    beta2: _Decay = 0.95
    epsilon: Positive = 1e-8
    weight_decay: _Scale = 0.1
    clip: Positive = 1.0
    evaluate_every: Natural = 250
    checkpoint_every: Natural | None = None
    keep_checkpoints: Natural = 3
    patience: Count | None = None
    decay_patience: Count | None = None
    label_smoothing: Rate = 0.0
    r_drop: Positive = 0.0
    expert_balance: Annotated[Positive, "model.experts"] = 0.01
    ema: _Decay = 0.0
    best_by: Annotated[Criterion, "training.bleu_sentences"] = "loss"
    bleu_sentences: Natural = 2000
    sample: tuple[str, ...] = ()
    masking_rate: Annotated[float, Meta(ge=0.001, le=0.999), "model.objective=masked"] = 0.15
    compile: bool = False
    gradient_checkpointing: bool = False
    tensorboard: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise UsageError(f"give only one of {', '.join(lengths)}")
        if self.epochs == 0:
            raise UsageError("epochs must be more than 0")
        if self.budget is not None:
            parse_duration(self.budget)
            if self.schedule != "wsd" or self.decay_fraction == 1:
                raise UsageError("a budget needs the schedule wsd and a decay_fraction below 1")

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
        raise UsageError(f"budget: a time is written like 90s, 10m or 1h30m, not {text!r}")
    return total
