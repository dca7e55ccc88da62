"""Extending a run beyond its planned end; the constants come from docs/lab/recipe.md, section "Continued training"."""

from __future__ import annotations

import dataclasses

from lm.config.run_config import RunConfig
from lm.config.settings import LENGTHS
from lm.config.training import TrainingConfig, parse_duration
from lm.data.batch import TrainingData
from lm.optim.schedules import learning_rate
from lm.run_folder import TrainingState
from lm.training.planning.plan import compute_steps
from lm.training.planning.regularisation import choose_dropout

_EXTENSION_RATE = 0.1
"""Minimum learning rate from which an extended run decays, as a fraction of the peak."""
_OVERFIT = 0.01
"""Relative increase of the last validation loss over the best from which a checkpoint has overfit."""


def find_overfit(state: TrainingState, last_loss: float | None) -> bool:
    """Whether the validation loss of the last checkpoint is clearly higher than that of an earlier, the best.

    Args:
        state: of the last checkpoint.
    """
    if last_loss is None or state.best_loss is None or (state.best_step or 0) >= state.step:
        return False
    return last_loss > (1 + _OVERFIT) * state.best_loss


def extend(
    config: RunConfig,
    state: TrainingState,
    length: TrainingConfig,
    *,
    data: TrainingData,
    last_loss: float | None = None,
    spent: float = 0.0,
    chooses_dropout: bool = False,
) -> tuple[RunConfig, str]:
    """Return config and plan of a run that is resumed with another length, and the reason.

    If a decay has started, the learning rate of an extended run continues from its value, or from a tenth of the peak
    if that is higher, instead of jumping back. Dropout is chosen if the data are seen many times. If the last
    checkpoint has overfit, training continues from the weights of the best one; the step count continues.

    Args:
        state: of the last checkpoint.
        length: with the new steps, epochs or tokens of the whole run, or a budget for the rest of it.
        last_loss: validation loss of the last evaluation.
        spent: seconds of that budget used before.
        chooses_dropout: whether dropout can be chosen, because the user has not set it.
    """
    plan, model, reason = config.plan, config.model, "resume"
    assert plan is not None
    lengths = {name: getattr(length, name) for name in LENGTHS}
    if length.budget is not None:
        lengths["schedule"] = length.schedule  # the one that goes with a budget
    training = dataclasses.replace(config.training, **lengths)
    steps = compute_steps(training, data, step_seconds=state.training_seconds / max(1, state.step), spent=spent)
    budget_seconds = None
    if length.budget is not None:
        steps, budget_seconds = state.step + steps, state.budget_seconds_used + parse_duration(length.budget)
    changed = dataclasses.replace(
        plan, steps=steps, epochs=steps / data.steps_per_epoch, budget_seconds=budget_seconds, max_steps=None,
        on_plateau=False,
    )  # fmt: skip
    if budget_seconds is not None or plan.budget_seconds is not None or steps > plan.steps:
        peak, total = config.training.learning_rate, plan.steps if plan.budget_seconds is None else None
        rate = learning_rate(state.step, config=config.training, steps=total, decay_start=plan.decay_start)
        is_endless = plan.decay_start is None and config.training.schedule in ("constant", "inverse-sqrt")
        # before the decay the schedule can be stretched
        has_decayed = not (is_endless or state.step < config.training.warmup_steps or rate >= peak)
        decay_step, scale = (state.step, max(rate / peak, _EXTENSION_RATE)) if has_decayed else (None, 1.0)
        best = state.best_step if find_overfit(state, last_loss) else None
        if best is not None:
            reason = f"extended from the weights of step {best}, the best"
        changed = dataclasses.replace(
            changed, extended_at=state.step, extended_from=best, decay_step=decay_step, decay_scale=scale
        )
        if chooses_dropout and has_decayed:
            dropout = choose_dropout(steps / data.steps_per_epoch, pairs=data.holds_pairs)
            model = model.replace(dropout=max(model.dropout, dropout))
    elif steps < plan.steps and plan.extended_at is None:
        changed = dataclasses.replace(changed, decay_step=None, decay_scale=1.0)
    return dataclasses.replace(config, model=model, training=training, plan=changed), reason
