"""How fast a run goes on this machine, as it was measured before the run begins."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lm.hardware import Hardware


@dataclass(frozen=True)
class Cost:
    """About how long an evaluation takes.

    Attributes:
        loss: seconds for the loss on the whole validation split.
        sentence: seconds for the translation of a sentence; 0 for a model that doesn't translate.
    """

    loss: float
    sentence: float


@dataclass(frozen=True)
class Pace:
    """How fast a run goes on this machine.

    Attributes:
        step: seconds of an optimizer step.
        evaluation: what an evaluation takes.
        hardware: the hardware and arithmetic that were found to be fastest.
        pause: seconds to evaluate and save, where it is known how much of the validation split is translated.
    """

    step: float
    evaluation: Cost
    hardware: Hardware
    pause: float = 0.0

    def shared_by(self, processes: int) -> Pace:
        """The pace of so many processes together, each as fast as the one that was timed."""
        if processes == 1:
            return self
        cost = Cost(self.evaluation.loss / processes, self.evaluation.sentence / processes)
        return replace(self, step=self.step / processes, evaluation=cost)
