"""What happens in training, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lm.config.training import Criterion


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        step: the number of the step, from 1.
        loss: what training minimises, a token in nats: with label smoothing, R-Drop and the source's surprisal, where
            these are asked for, but without what balances experts.
        learning_rate: the rate of this step.
        gradient_norm: norm of the gradient before clipping.
        tokens: number of targets; where few of the tokens are targets, of those that are read.
        flops: arithmetic of the step, forward and back.
        seconds: wall-clock time of the step.
        nll: mean surprisal of the targets alone, in nats, as in an evaluation but with dropout; None if not known.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    flops: float
    seconds: float
    nll: float | None = None


@dataclass(frozen=True)
class Decay:
    """The learning rate falls from here on, and `steps` will be the last step: a budget, or a plateau, says so.

    Attributes:
        step: after which it falls.
        steps: the last step.
        on_plateau: whether that is because the validation loss no longer falls.
    """

    step: int
    steps: int
    on_plateau: bool = False


@dataclass(frozen=True)
class Replanned:
    """Under a budget, steps take another time than was measured before the first one, and the plan is adapted.

    Attributes:
        step: after which it is.
        steps: that there will be in all, about.
        seconds: of a step.
        measured: seconds of a step, as measured before.
    """

    step: int
    steps: int
    seconds: float
    measured: float


@dataclass(frozen=True)
class EndMoved:
    """The last step of a decay was moved to `steps`, since the machine is busier than it was, or less busy."""

    step: int
    steps: int


VALIDATION_LOSS = "validation_loss"
METRICS: Mapping[str, str] = {
    VALIDATION_LOSS: "loss",
    "validation_bits_per_byte": "bits_per_byte",
    "validation_tokens": "tokens",
    "validation_bleu": "bleu",
    "validation_accuracy": "accuracy",
}
"""Fields of an Evaluation that are logged and can be plotted, by their names in `metrics.jsonl`."""


@dataclass(frozen=True)
class Evaluation:
    """How good the model is on the whole validation split.

    Attributes:
        step: the step after which it was evaluated.
        loss: nats per token.
        bits_per_byte: the same for each UTF-8 byte of text; None where not all of it is predicted.
        tokens: number of targets.
        seconds: wall-clock time of the evaluation.
        is_best: whether no earlier evaluation was better.
        bleu: BLEU of greedy translations, of an encoder-decoder.
        expert_use: the share of the tokens that each expert took, by the name of the layer that they are in.
        accuracy: the fraction of the targets that are the model's likeliest, of a masked model or a classifier; of a
            decoder that learns labels, of up to 4,096 examples whose label is the likeliest of all.
    """

    step: int
    loss: float
    bits_per_byte: float | None
    tokens: int
    seconds: float
    is_best: bool
    bleu: float | None = None
    expert_use: Mapping[str, Sequence[float]] = field(default_factory=dict)
    accuracy: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The fields of `METRICS` that this evaluation has."""
        found = {name: getattr(self, attribute) for name, attribute in METRICS.items()}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Sample:
    """What the model makes of a fixed prompt: a continuation, or with `is_translation` a translation.

    Of a masked model it is the prompt with its blanks filled, of a classifier its label; both are drawn as
    translations are.
    """

    step: int
    prompt: str
    text: str
    is_translation: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk, whole. It was copied after its step, and training has continued meanwhile."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Stopped:
    """Training ended before its last step, and the run is saved: the caller asked for it, or patience ran out.

    Attributes:
        step: the last step that was taken.
        patience_ran_out: whether too many evaluations in a row were no better than the best.
        criterion: what made one of them the best.
    """

    step: int
    patience_ran_out: bool = False
    criterion: Criterion = "loss"


@dataclass(frozen=True)
class Warned:
    """Something beside training failed, such as a sample, and training continues without it."""

    step: int
    message: str


Event = Step | Decay | EndMoved | Replanned | Evaluation | Sample | Saved | Stopped | Warned
