"""Events that training yields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        step: number of the step, from 1.
        loss: training loss in nats per token, with label smoothing and R-Drop if they are set, but without the
            load-balancing loss of experts.
        nll: mean surprisal of the targets in nats, as in an evaluation but with dropout.
        learning_rate: of this step.
        gradient_norm: norm of the gradient before clipping.
        tokens: number of targets; for masked models and classifiers number of tokens read.
        flops: FLOPs of the step, forward and backward.
        seconds: wall time of the step.
    """

    step: int
    loss: float
    nll: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class DecayStarted:
    """The learning rate starts to decay, because of a budget or a plateau.

    Attributes:
        steps: number of steps, now final.
        on_plateau: whether the validation loss no longer falls.
        restored_step: on a plateau, the step with the best loss, from whose weights training continues.
    """

    step: int
    steps: int
    on_plateau: bool = False
    restored_step: int | None = None


@dataclass(frozen=True)
class EndRescheduled:
    """The end of a decay was moved to step `steps`, because the speed of the machine has changed."""

    step: int
    steps: int


METRICS = ("loss", "bits_per_byte", "tokens", "bleu", "accuracy")
"""Fields of an Evaluation that are logged, as `validation_` and the name."""


@dataclass(frozen=True)
class Evaluation:
    """Scores on the validation split.

    Attributes:
        step: steps taken.
        loss: nats per token.
        bits_per_byte: bits per UTF-8 byte of text; None where not all of it is predicted.
        tokens: number of targets.
        seconds: wall time of the evaluation.
        is_best: whether no earlier evaluation was better.
        bleu: BLEU of greedy translations, for encoder-decoders.
        accuracy: fraction of targets predicted correctly, for masked models and classifiers.
    """

    step: int
    loss: float
    bits_per_byte: float | None
    tokens: int
    seconds: float
    is_best: bool
    bleu: float | None = None
    accuracy: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The scores that are known, by their names in `metrics.jsonl`."""
        values = {f"validation_{name}": getattr(self, name) for name in METRICS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Sample:
    """A model output for a fixed prompt: a continuation or, with `is_translation`, a translation."""

    step: int
    prompt: str
    text: str
    is_translation: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written; training has continued since its step."""

    step: int
    folder: Path


@dataclass(frozen=True)
class StoppedEarly:
    """Training ended before its last step, and the run is saved.

    Attributes:
        patience_ran_out: whether too many evaluations in a row were no better than the best; else the caller stopped
            it.
    """

    step: int
    patience_ran_out: bool = False


Event = Step | DecayStarted | EndRescheduled | Evaluation | Sample | Saved | StoppedEarly
