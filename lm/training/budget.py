"""A time instead of a number of steps: the clock of a run says when the decay of its learning rate has to begin."""

from __future__ import annotations

import statistics
import time
from collections import deque

from lm.config import TrainingConfig
from lm.training.schedules import steps_in_all

_STEPS_LOOKED_BACK_ON = 100
_TO_FINISH = 1.0  # seconds for the last checkpoint and the end of the process


class Clock:
    """How much time a run has left, and how much of it a step takes, and a pause to evaluate and save.

    All that happens between two steps counts: reading a batch, writing the journal, drawing the display.
    """

    def __init__(self, left: float) -> None:
        """With `left` seconds from now."""
        self._last = time.monotonic()
        self._deadline = self._last + left
        self._steps: deque[float] = deque(maxlen=_STEPS_LOOKED_BACK_ON)
        self._pauses: list[float] = []

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - time.monotonic()

    def note(self, *, is_plain: bool) -> None:
        """A step was taken; unless it is a plain one, the model was evaluated or saved after it."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if is_plain:
            self._steps.append(seconds)
        elif self._steps:
            self._pauses.append(seconds - statistics.median(self._steps))

    def steps_in_all(self, step: int, *, config: TrainingConfig) -> int | None:
        """How many steps there will be in all if the decay has to begin now, after `step`; None if there is time.

        Where it should have begun before, as after a step that took very long, there are only as many as fit.
        """
        steps, pauses = steps_in_all(step, config=config), 1
        if config.evaluate_every:
            pauses += steps // config.evaluate_every - (step - 1) // config.evaluate_every
        a_step = statistics.fmean(self._steps) if self._steps else 0.0
        a_pause = statistics.fmean(self._pauses) if self._pauses else 0.0
        for_steps = self.left - pauses * a_pause - _TO_FINISH
        if for_steps > (steps - step) * a_step:
            return None
        fitting = max(1, int(for_steps / a_step)) if a_step else 1
        return step + min(fitting, max(1, steps - step))
