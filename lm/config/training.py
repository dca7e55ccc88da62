"""How a model is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import LENGTHS, Config, Count, Fraction, LargeCount, Natural, Positive, Rate, Requires, Seed
from lm.errors import UsageError

Schedule = Literal["cosine", "linear", "inverse-sqrt", "wsd", "constant"]
Criterion = Literal["loss", "bleu"]
OptimizerKind = Literal["adamw", "muon"]
Orthogonalisation = Literal["gram-newton-schulz", "newton-schulz"]

MOST_ROWS = 2**40
"""The most sequences or tokens of a batch: larger sizes would overflow before memory is allocated."""
_Rows = Annotated[int, Meta(ge=1, le=MOST_ROWS)]
_Scale = Annotated[float, Meta(ge=0, le=1e9)]
_Decay = Annotated[float, Meta(ge=0, le=0.99999)]
_MASKED, _EXPERTS = Requires("model.objective=masked"), Requires("model.experts")
_UNITS = {"h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class TrainingConfig(Config):
    """How a model is trained. Exactly one of steps, epochs, tokens and budget says for how long."""

    steps: Annotated[LargeCount | None, "Training length in optimizer steps."] = None
    epochs: Annotated[Positive | None, "Training length in passes over the training split."] = None
    tokens: Annotated[LargeCount | None, "Training length in tokens."] = None
    budget: Annotated[str | None, "Training time, such as 10m or 1h30m; default by the corpus."] = None
    batch_size: Annotated[_Rows, "Sequences per step."] = 32
    batch_tokens: Annotated[_Rows | None, "Tokens per step, instead of batch_size."] = None
    batch_warmup: Annotated[Natural, "Steps over which the batch grows, from a quarter."] = 0
    micro_batch_size: Annotated[_Rows | None, "Gradient accumulation: sequences per pass; default all that fit."] = None
    learning_rate: Annotated[_Scale, "Peak learning rate."] = 1e-3
    schedule: Annotated[Schedule, "Learning-rate schedule."] = "cosine"
    warmup_steps: Annotated[Natural, "Learning-rate warm-up."] = 50
    final_learning_rate_fraction: Annotated[
        Fraction, "Final learning rate / peak.", Requires("training.schedule=cosine|linear|wsd")
    ] = 0.1
    decay_fraction: Annotated[Fraction, "Schedule wsd: decay fraction.", Requires("training.schedule=wsd")] = 0.2
    optimizer: Annotated[OptimizerKind, "Optimizer; muon: AdamW for embeddings and vectors."] = "adamw"
    orthogonalisation: Annotated[
        Orthogonalisation,
        "Muon: iteration; newton-schulz: slower, rounds differently.",
        Requires("training.optimizer=muon"),
    ] = "gram-newton-schulz"
    beta1: Annotated[float, Meta(ge=0, le=0.9999), "AdamW: β1."] = 0.9
    beta2: Annotated[_Decay, "AdamW: β2."] = 0.95
    epsilon: Annotated[Positive, "AdamW: ε."] = 1e-8
    weight_decay: Annotated[_Scale, "Weight decay of matrices."] = 0.1
    clip: Annotated[Positive, "Gradient clipping: maximum norm; 0: off."] = 1.0
    evaluate_every: Annotated[Natural, "Evaluation interval in steps; 0: only at the end."] = 250
    checkpoint_every: Annotated[Natural | None, "Checkpoint interval; 0: at the end; default evaluate_every."] = None
    keep_checkpoints: Annotated[Natural, "Keep the latest N checkpoints and the best; 0: all."] = 3
    patience: Annotated[Count | None, "Stop after N evaluations without improvement."] = None
    decay_patience: Annotated[Count | None, "Start the decay after N evaluations without improvement."] = None
    label_smoothing: Annotated[Rate, "Label smoothing."] = 0.0
    r_drop: Annotated[Positive, "R-Drop: weight of the KL term; 0: off."] = 0.0
    expert_balance: Annotated[Positive, "MoE: weight of the load-balancing loss.", _EXPERTS] = 0.01
    ema: Annotated[_Decay, "EMA decay; averaged weights are evaluated and saved; 0: off."] = 0.0
    best_by: Annotated[Criterion, "Criterion of the best checkpoint.", Requires("training.bleu_sentences")] = "loss"
    bleu_sentences: Annotated[Natural, "Sentences translated per evaluation, for BLEU."] = 2000
    sample: Annotated[tuple[str, ...], "Prompt to continue at each evaluation. Repeatable."] = ()
    masking_rate: Annotated[float, Meta(ge=0.001, le=0.999), "Masked models: masking rate.", _MASKED] = 0.15
    whole_words: Annotated[bool, "Masked models: mask whole words.", _MASKED] = False
    compile: Annotated[bool, "Use torch.compile; pays off in long runs."] = False
    gradient_checkpointing: Annotated[bool, "Recompute activations: less memory, slower."] = False
    tensorboard: Annotated[bool, "Write TensorBoard files."] = False
    seed: Annotated[Seed, "Seed of weights, data order and dropout."] = 0

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
