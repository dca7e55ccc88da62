"""The learning rate and the size of a batch as pure functions of the step."""

from __future__ import annotations

import math

from lm.config.training import TrainingConfig

_FIRST_BATCH = 0.25


def learning_rate(
    step: int, *, config: TrainingConfig, steps: int | None, decay_start: tuple[int, float] | None = None
) -> float:
    """The learning rate of a step, counted from 0, in a run of `steps`, or of one that does not end yet.

    It rises linearly over the warm-up and then follows the schedule down to `final_learning_rate` of the peak
    (inverse-sqrt and constant end where they end). With `decay_start` it falls linearly instead, after so many steps
    and from that fraction of the peak, as a budget's clock or the extension of a run has decided; until the end is known,
    it stays there.

    Source: cosine: Loshchilov and Hutter 2017; inverse-sqrt: Vaswani et al. 2017; wsd: Hu et al. 2024 (MiniCPM).
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    if steps is None:
        return config.learning_rate * (1.0 if decay_start is None else decay_start[1])
    if decay_start is not None:
        return config.learning_rate * _falling(step, *decay_start, steps=steps, final=config.final_learning_rate)
    after, remaining = step - config.warmup_steps, max(1, steps - config.warmup_steps)
    return config.learning_rate * _share(config, after, remaining)


def _falling(step: int, since: int, fraction: float, *, steps: int, final: float) -> float:
    """A fraction of the peak that falls linearly from `fraction`, after step `since`, to `final` after the last step."""
    return fraction - (fraction - final) * min(1.0, (step - since) / max(1, steps - since))


def batch_fraction(step: int, *, config: TrainingConfig) -> float:
    """The fraction of a whole batch that a step, counted from 0, learns from: small batches serve at first.

    Source: McCandlish et al. 2018, An Empirical Model of Large-Batch Training.
    """
    if step >= config.batch_warmup:
        return 1.0
    return _FIRST_BATCH + (1 - _FIRST_BATCH) * step / config.batch_warmup


def steps_for(batches: float, *, config: TrainingConfig) -> int:
    """How many steps it takes to learn from so many whole batches, the first steps being smaller."""
    growing, growth = config.batch_warmup, 1 - _FIRST_BATCH
    if batches >= growing * (1 - growth / 2):
        return math.ceil(batches + growing * growth / 2)
    return math.ceil(growing / growth * (math.sqrt(_FIRST_BATCH**2 + 2 * growth * batches / growing) - _FIRST_BATCH))


def steps_in_all(step: int, *, config: TrainingConfig, since: int = 0) -> int:
    """How many steps a run has whose wsd schedule begins to decay after `step` of them, or after `step - since`."""
    began = max(config.warmup_steps, since)
    stable = step - began
    if stable <= 0:
        return step
    return began + math.ceil(stable / (1 - config.decay_fraction))


def _share(config: TrainingConfig, after: int, remaining: int) -> float:
    """The fraction of the peak `after` steps past the warm-up, of `remaining`."""
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
