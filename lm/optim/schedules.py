"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math

from lm.config.run_config import TrainingConfig


def learning_rate(
    step: int, *, config: TrainingConfig, steps: int | None, decay_start: tuple[int, float] | None = None
) -> float:
    """Return the learning rate of a step, counted from 0, in a run of `steps` (None: not known yet).

    Linear warm-up, then the schedule decays to `final_learning_rate_fraction` × peak (except inverse-sqrt and
    constant). With `decay_start` (step, fraction), chosen by a budget or the extension of a run, it decays linearly
    from that fraction of the peak after that step; until `steps` is known it stays there.

    Source: cosine: Loshchilov and Hutter 2017; inverse-sqrt: Vaswani et al. 2017; wsd: Hu et al. 2024 (MiniCPM).
    """
    warmup, final, fraction = config.warmup_steps, config.final_learning_rate_fraction, 1.0
    if step < warmup:
        return config.learning_rate * (step + 1) / (warmup + 1)
    if decay_start is not None:
        since, fraction = decay_start
        if steps is not None:
            fraction -= (fraction - final) * min(1.0, (step - since) / max(1, steps - since))
    elif steps is not None:
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        if config.schedule == "cosine":
            fraction = final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
        elif config.schedule == "linear":
            fraction = 1 - (1 - final) * progress
        elif config.schedule == "inverse-sqrt":
            fraction = math.sqrt(max(1, warmup) / (max(1, warmup) + step - warmup))
        elif config.schedule == "wsd" and config.decay_fraction:
            fraction = 1 - (1 - final) * max(0.0, 1 - (1 - progress) / config.decay_fraction)
    return config.learning_rate * fraction


def total_steps_from_decay(step: int, *, config: TrainingConfig, since: int = 0) -> int:
    """Return the total steps of a wsd run that starts to decay after `step`; `since` is the step of an extension."""
    start = max(config.warmup_steps, since)
    return step if step <= start else start + math.ceil((step - start) / (1 - config.decay_fraction))
