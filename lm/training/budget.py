"""A time budget while a run trains: how fast it goes, when its learning rate decays, and when it ends."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from lm.config.training import TrainingConfig
from lm.hardware import Hardware
from lm.optim.schedules import steps_in_all

_STEPS_LOOKED_BACK_ON = 100  # fewer made runs of two minutes end 5% early (docs/recipe.md)
_TO_FINISH = 1.0  # seconds for the end of the process
_OFF, _OFF_BY, _OFF_BY_STEPS = 0.02, 0.5, 1.5  # share of a budget, seconds, steps: the end is moved if off by more
_STEPS_TO_TELL, _FRACTION_TO_TELL = 10, 0.08  # steps, and fraction of a budget, after which the pace is known
_LONG, _SHARE_OF_LONG, _SHARE_OF_SHORT = 120.0, 0.1, 0.2  # a budget of so many seconds, and what `aside` is of it


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
    """How fast a run is on this machine.

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


def aside(left: float) -> float:
    """Seconds that evaluating and saving may take of those that are left of a budget when the first step begins."""
    return max(0.0, left) * (_SHARE_OF_LONG if left >= _LONG else _SHARE_OF_SHORT)


class Clock:
    """How much time a run has left, and how much of it a step takes, and a pause to evaluate and save.

    All that happens between two steps counts: reading a batch, writing the journal, drawing the display.

    Attributes:
        to_write: seconds that it takes to write a checkpoint, which only the end has to wait for.
    """

    to_write = 0.0

    def __init__(
        self, left: float, *, spent: float = 0.0, pause: float = 0.0, now: Callable[[], float] | None = None
    ) -> None:
        """A clock that starts now.

        Args:
            left: seconds until the deadline.
            spent: seconds of the budget that went into getting ready.
            pause: seconds that a pause is expected to take, until the first has shown it.
            now: tells the time, in seconds; several processes that ask one clock decide alike.
        """
        self._now = now or time.monotonic
        self._last = self._now()
        self._deadline = self._last + left
        self._whole = max(0.0, left) + spent
        self._aside = aside(left)
        self._steps: deque[float] = deque(maxlen=_STEPS_LOOKED_BACK_ON)
        self._pauses: list[float] = []
        self._likely_pause = pause

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - self._now()

    def until(self, step: int, steps: int, *, config: TrainingConfig) -> float:
        """Seconds from the last step to the last of so many, but not more than were left then; asks no clock."""
        return min(self._deadline - self._last, self._seconds_for(step, steps, config=config))

    def note(self, *, is_plain: bool) -> None:
        """Note that a step was taken, after which, unless it is a plain one, the model was evaluated or saved."""
        now = self._now()
        seconds, self._last = now - self._last, now
        if is_plain:
            self._steps.append(seconds)
        elif self._steps:
            self._pauses.append(max(0.0, seconds - statistics.median(self._steps)))

    def pace(self) -> tuple[float, float] | None:
        """Seconds of a step and of a pause, once there have been enough steps to tell; None before that."""
        is_known = len(self._steps) >= _STEPS_TO_TELL and self._whole - self.left >= _FRACTION_TO_TELL * self._whole
        return (self._a_step, self._a_pause) if is_known else None

    def has_time_to_pause(self) -> bool:
        """Whether one more pause, and the last one, are within the time that may go into all that is not training."""
        return sum(self._pauses) + 2 * self._a_pause <= self._aside

    def steps_in_all(self, step: int, *, config: TrainingConfig, since: int = 0) -> int | None:
        """How many steps there will be in all if the decay has to begin now, after `step`; None if there is time.

        Where it should have begun before, as after a step that took very long, there are only as many as fit.

        Args:
            step: steps taken.
            config: of the run.
            since: the step at which the run was extended.
        """
        steps = steps_in_all(step, config=config, since=since)
        if self._seconds_for(step, steps, config=config) < self.left:
            return None
        return min(max(step + 1, steps), self.fitting(step, steps, config=config))

    def moved_end(self, step: int, steps: int, *, config: TrainingConfig) -> int | None:
        """How many steps there should be in all, where a decay of `steps` is far from ending in time; else None."""
        off = self._seconds_for(step, steps, config=config) - self.left
        if (
            step >= steps
            or not self._steps
            or abs(off) <= max(_OFF_BY, _OFF * self._whole, _OFF_BY_STEPS * self._a_step)
        ):
            return None
        fitting = self.fitting(step, steps, config=config)
        return fitting if fitting != steps else None

    @property
    def _a_step(self) -> float:
        return statistics.fmean(self._steps) if self._steps else 0.0

    @property
    def _a_pause(self) -> float:
        return statistics.fmean(self._pauses) if self._pauses else self._likely_pause

    def _seconds_for(self, step: int, steps: int, *, config: TrainingConfig) -> float:
        """Seconds from now to the end of a run of so many steps in all."""
        return (steps - step) * self._a_step + self._for_pauses(step, steps, config=config)

    def _for_pauses(self, step: int, steps: int, *, config: TrainingConfig) -> float:
        """Seconds for the evaluations that are still to come, as far as they are affordable, and for the end."""
        pauses = 1
        if config.evaluate_every:
            pauses += (steps - 1) // config.evaluate_every - step // config.evaluate_every
        affordable = max(self._a_pause, self._aside - sum(self._pauses))
        return min(pauses * self._a_pause, affordable) + self.to_write + _TO_FINISH

    def fitting(self, step: int, steps: int, *, config: TrainingConfig) -> int:
        """The number of steps in all that fits into the time left; one more than now at least."""
        for_steps = self.left - self._for_pauses(step, steps, config=config)
        return step + (max(1, int(for_steps / self._a_step)) if self._a_step else 1)
