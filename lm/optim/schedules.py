"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math

from lm.config.training import TrainingConfig


def learning_rate(
    step: int, *, config: TrainingConfig, steps: int | None, decay_start: tuple[int, float] | None = None
) -> float:
    """Return the learning rate of a step, counted from 0, in a run of `steps` (None: not known yet).

    Linear warm-up, then the schedule decays to `final_learning_rate_fraction` × peak (except inverse-sqrt and
    constant). With `decay_start` (step, fraction), chosen by a budget or the extension of a run, it decays linearly
    from that fraction of the peak after that step; until `steps` is known it stays there.

    Source: cosine: Loshchilov and Hutter 2017; inverse-sqrt: Vaswani et al. 2017; wsd: Hu et al. 2024 (MiniCPM).
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    if steps is None:
        return config.learning_rate * (1.0 if decay_start is None else decay_start[1])
    if decay_start is not None:
        return config.learning_rate * _linear_decay(
            step, *decay_start, steps=steps, final=config.final_learning_rate_fraction
        )
    elapsed, total = step - config.warmup_steps, max(1, steps - config.warmup_steps)
    return config.learning_rate * _schedule_fraction(config, elapsed, total)


def _linear_decay(step: int, since: int, fraction: float, *, steps: int, final: float) -> float:
    """Interpolate linearly from `fraction` after step `since` to `final` at the last step."""
    return fraction - (fraction - final) * min(1.0, (step - since) / max(1, steps - since))


def total_steps_from_decay(step: int, *, config: TrainingConfig, since: int = 0) -> int:
    """Return the total steps of a wsd run that starts to decay after `step`; `since` is the step of an extension."""
    start = max(config.warmup_steps, since)
    stable = step - start
    if stable <= 0:
        return step
    return start + math.ceil(stable / (1 - config.decay_fraction))


def _schedule_fraction(config: TrainingConfig, elapsed: int, total: int) -> float:
    """Return the fraction of the peak after `elapsed` of `total` steps since the warm-up."""
    progress, final = min(1.0, elapsed / total), config.final_learning_rate_fraction
    if config.schedule == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    if config.schedule == "linear":
        return 1 - (1 - final) * progress
    if config.schedule == "inverse-sqrt":
        return math.sqrt(max(1, config.warmup_steps) / (max(1, config.warmup_steps) + elapsed))
    if config.schedule == "wsd" and config.decay_fraction:
        return 1 - (1 - final) * max(0.0, 1 - (1 - progress) / config.decay_fraction)
    return 1.0
