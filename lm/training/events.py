"""What happens in training, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        step: its number, from 1.
        loss: mean over the targets, in nats.
        learning_rate: that it was taken with.
        gradient_norm: before clipping.
        tokens: targets.
        flops: arithmetic spent on them.
        seconds: how long it took.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class Decay:
    """Of a run under a budget: the learning rate falls from here on, and `steps` will be the last step."""

    step: int
    steps: int


@dataclass(frozen=True)
class EndMoved:
    """The machine is busier than it was, or less so: `steps` will be the last step now."""

    step: int
    steps: int


@dataclass(frozen=True)
class Evaluation:
    """The loss over the whole validation split, in nats per token and bits per byte of text; BLEU of translations."""

    step: int
    loss: float
    bits_per_byte: float
    tokens: int
    seconds: float
    is_best: bool
    bleu: float | None = None


@dataclass(frozen=True)
class Sample:
    """What the model makes of a fixed prompt by now: how it goes on, or with `is_translation` its translation."""

    step: int
    prompt: str
    text: str
    is_translation: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Stopped:
    """Training ended before its last step, because the caller asked, or for want of progress; it is saved."""

    step: int
    patience_ran_out: bool = False


Event = Step | Decay | EndMoved | Evaluation | Sample | Saved | Stopped
