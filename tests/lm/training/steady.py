"""A machine of which everything takes the same time."""

import itertools
import threading

from lm.hardware import Hardware
from lm.training.measure import SpeedMeter
from lm.training.rules import TrainingSpeed


class Steady(SpeedMeter):
    """Measures what it is told."""

    def __init__(self, flop_rate: float, step: float) -> None:
        self.flop_rate, self.step = flop_rate, step

    def measure_flop_rate(self, config, *, seconds):
        return self.flop_rate

    def measure_training_speed(self, config, data, tokenizers, *, seconds):
        sentence = 1e-3 if data.holds_pairs else 0.0
        return TrainingSpeed(self.step, 0.01, sentence, Hardware("cpu", "float32", 1))


def steady(
    *, startup: float = 0.0, tick: float = 0.02, flop_rate: float = 1e9, step: float = 0.02
) -> dict[str, object]:
    """Options of a trainer: a clock that each look moves on, and writing a checkpoint does not, and such a machine."""
    ticks = itertools.count(0.0, tick)

    def clock() -> float:
        return next(ticks) if threading.current_thread() is threading.main_thread() else 0.0

    return {"clock": clock, "start_time": -startup, "speed_meter": Steady(flop_rate, step)}
