"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from lm.config import TrainingConfig


def learning_rate(step: int, *, config: TrainingConfig, steps: int) -> float:
    """The learning rate of a step, counted from 0, in a run of `steps`.

    It rises linearly over the warm-up and then follows the schedule down to `final_learning_rate` of the peak
    (inverse-sqrt and constant end where they end).

    Source: cosine: Loshchilov and Hutter 2017; inverse-sqrt: Vaswani et al. 2017; wsd: Hu et al. 2024 (MiniCPM).
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    after, remaining = step - config.warmup_steps, max(1, steps - config.warmup_steps)
    return config.learning_rate * _share(config, after, remaining)


def _share(config: TrainingConfig, after: int, remaining: int) -> float:
    """The share of the peak `after` steps past the warm-up, of `remaining`."""
    progress, final = min(1.0, after / remaining), config.final_learning_rate
    if config.schedule == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    if config.schedule == "linear":
        return 1 - (1 - final) * progress
    if config.schedule == "inverse-sqrt":
        return math.sqrt(max(1, config.warmup_steps) / (max(1, config.warmup_steps) + after))
    if config.schedule == "wsd" and config.decay_fraction:
        return 1 - (1 - final) * max(0.0, 1 - (1 - progress) / config.decay_fraction)
    return 1.0
