"""Time budgets: the speed of a run, when the learning rate decays, and when the run ends."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lm.config.run_config import TrainingConfig, parse_duration
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.optim.schedules import total_steps_from_decay

UNLIMITED_STEPS = 1 << 40
_MAX_STARTUP = 0.75  # fraction of a budget
_STEP_WINDOW = 100  # with fewer, runs of two minutes ended 5% early (docs/lab/recipe.md)
_EXIT_SECONDS = 1.0  # seconds to end the process
_TOLERANCE, _TOLERANCE_SECONDS, _TOLERANCE_STEPS = 0.02, 0.5, 1.5
"""Fraction of the budget, seconds, steps: the end is moved if it misses the deadline by more."""
_MIN_STEPS = 10  # after which the speed is known
_LONG_BUDGET, _RESERVE_OF_LONG, _RESERVE_OF_SHORT = 120.0, 0.1, 0.2
"""Seconds, and the fractions reserved for evaluations."""


@dataclass(frozen=True)
class TrainingSpeed:
    """Measured speed of a run on this machine.

    Attributes:
        loss_seconds: for the loss on the whole validation split.
        sentence_seconds: to translate one sentence in an evaluation; 0 without translation.
        hardware: the fastest hardware settings.
        evaluation_seconds: seconds to evaluate and save; known once the number of sentences to translate is.
    """

    step_seconds: float
    loss_seconds: float
    sentence_seconds: float
    hardware: Hardware
    evaluation_seconds: float = 0.0

    def scaled_to(self, processes: int) -> TrainingSpeed:
        """Return the speed of several processes, assuming linear scaling."""
        step, loss, sentence = self.step_seconds, self.loss_seconds, self.sentence_seconds
        return TrainingSpeed(step / processes, loss / processes, sentence / processes, self.hardware)


def evaluation_reserve(seconds_left: float) -> float:
    """Return the seconds reserved for evaluating and saving, of those left of a budget at the first step."""
    return max(0.0, seconds_left) * (_RESERVE_OF_LONG if seconds_left >= _LONG_BUDGET else _RESERVE_OF_SHORT)


def check_startup(budget: str | None, seconds: float) -> None:
    """Raise UsageError if start-up took so much of a budget that too little is left for training.

    Args:
        budget: None if there is none.
        seconds: since the start of the command.
    """
    if budget is not None and seconds > _MAX_STARTUP * parse_duration(budget):
        raise UsageError(f"{budget} is too short: start-up took {seconds:.1f} s of it")


class BudgetClock:
    """Remaining time of a run under a budget, with the measured duration of steps and evaluations.

    Everything between two steps counts: loading the batch, logging, rendering.

    Attributes:
        checkpoint_seconds: seconds to write a checkpoint, which delays only the end of the run.
        max_steps: limit of the number of steps, however much time is left.
        seconds: until the deadline, at the start.
    """

    checkpoint_seconds = 0.0

    def __init__(
        self,
        seconds_left: float,
        *,
        spent: float = 0.0,
        evaluation_seconds: float = 0.0,
        max_steps: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Start the clock.

        Args:
            seconds_left: seconds until the deadline.
            spent: seconds of the budget used before.
            evaluation_seconds: expected seconds to evaluate and save, until they have been measured.
            max_steps: see the attribute; None for no limit.
            clock: in seconds; the same for all ranks, so that they decide alike.
        """
        self._clock = clock or time.monotonic
        self.max_steps = UNLIMITED_STEPS if max_steps is None else max_steps
        self._last = self._clock()
        self.seconds, self._deadline = seconds_left, self._last + seconds_left
        self._budget, self._reserve = max(0.0, seconds_left) + spent, evaluation_reserve(seconds_left)
        self._steps: deque[float] = deque(maxlen=_STEP_WINDOW)
        self._evaluations: list[float] = []
        self._expected_evaluation = evaluation_seconds

    @property
    def seconds_left(self) -> float:
        return self._deadline - self._clock()

    def record_step(self, *, is_plain: bool) -> None:
        """Record the duration of a step; unless `is_plain`, it was followed by an evaluation or a checkpoint."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if is_plain:
            self._steps.append(seconds)
        elif self._steps:
            self._evaluations.append(max(0.0, seconds - statistics.median(self._steps)))

    def can_evaluate(self) -> bool:
        """Whether one more evaluation, and the last one, fit into the time reserved for evaluations."""
        return sum(self._evaluations) + 2 * self._evaluation_seconds <= self._reserve

    def total_if_due(self, step: int, *, config: TrainingConfig, since: int = 0) -> int | None:
        """Return the total number of steps if the decay must start after `step`, or None if there is still time.

        If the decay should have started earlier, for instance after a slow step, as many steps are left as fit.

        Args:
            since: step at which the run was extended.
        """
        steps = total_steps_from_decay(step, config=config, since=since)
        if steps < self.max_steps and self._seconds_to_end(step, steps, config) < self.seconds_left:
            return None
        return min(max(step + 1, steps), self.affordable_total(step, steps, config=config))

    def rescheduled_total(self, step: int, steps: int, *, config: TrainingConfig) -> int | None:
        """Return a new number of steps if a decay that ends at `steps` would miss the deadline by far, else None."""
        off = self._seconds_to_end(step, steps, config) - self.seconds_left
        tolerance = max(_TOLERANCE_SECONDS, _TOLERANCE * self._budget, _TOLERANCE_STEPS * self._step_seconds)
        if step >= steps or not self._steps or abs(off) <= tolerance:
            return None
        fitting = self.affordable_total(step, steps, config=config)
        return fitting if fitting != steps else None

    def affordable_total(
        self, step: int, steps: int, *, config: TrainingConfig, seconds_left: float | None = None
    ) -> int:
        """Return the number of steps, at least `step` + 1, that fit into some time [default: what is left]."""
        seconds = (self.seconds_left if seconds_left is None else seconds_left) - self._overhead(step, steps, config)
        more = int(seconds / self._step_seconds) if self._step_seconds else 1
        return step + max(1, min(more, self.max_steps - step))

    @property
    def _step_seconds(self) -> float:
        return statistics.fmean(self._steps) if self._steps else 0.0

    @property
    def _evaluation_seconds(self) -> float:
        return statistics.fmean(self._evaluations) if self._evaluations else self._expected_evaluation

    def _seconds_to_end(self, step: int, steps: int, config: TrainingConfig) -> float:
        return (steps - step) * self._step_seconds + self._overhead(step, steps, config)

    def _overhead(self, step: int, steps: int, config: TrainingConfig) -> float:
        """Return seconds for the remaining evaluations that are affordable, and for the end of the run."""
        interval = config.evaluate_every
        pauses = 1 + ((steps - 1) // interval - step // interval if interval else 0)
        affordable = max(self._evaluation_seconds, self._reserve - sum(self._evaluations))
        return min(pauses * self._evaluation_seconds, affordable) + self.checkpoint_seconds + _EXIT_SECONDS
