"""Continued training: from another run's weights on other data, or beyond the end that a run was planned with.

The constants come from the runs in docs/recipe.md, section "Continued training".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from lm.config.presets import muon_learning_rate
from lm.config.run import RunConfig, RunPlan
from lm.config.run_spec import RunSpec
from lm.config.training import LENGTHS, TrainingConfig, parse_duration
from lm.data.training_data import TrainingData
from lm.optim.schedules import learning_rate
from lm.run_folder import TrainingState
from lm.training.regularisation import dropout_for
from lm.training.resolve import Resolution, planned_steps

_ADAMW_RATE = 3e-3
"""The peak of AdamW for random weights of a model 128 wide; it falls with the width (Yang et al. 2022)."""
_ADAPTER_RATE = 4e-2
"""The same for low-rank adapters, though they never start from random weights."""
_GAPS, _RATES = (0.0, 3.0), (0.1, 0.7)
"""Nats per token that the first loss on the new data is above the parent's loss on its own, and the learning rate for
that, as a fraction of the peak for random weights; in between, its logarithm is on a line."""
_RATE_WITHOUT_GAP = 0.1
"""The fraction where one of the losses is not known."""
_EPOCHS, _MOST_EPOCHS, _FEWEST_STEPS, _MOST_STEPS = 3.0, 10.0, 50, 2000
"""Few data are seen more often, until there are enough steps, and many are not seen as often."""
_WARMUP, _EVALUATIONS, _PATIENCE = 0.1, 10, 3

_EXTENSION_RATE = 0.1
"""Of the peak: what the learning rate of an extended run falls from, unless it is higher anyway."""
_OVERFIT = 0.01
"""How far the validation loss of the last checkpoint is above the best, as a fraction of it, where it has overfit."""


@dataclass(frozen=True)
class Continued:
    """What was chosen for a run that starts with the weights of another one, and why.

    Attributes:
        config: the settings.
        initial_loss: nats per token on some of the held-out data before the first step; None where not known.
        parent_loss: that of the other run on its own.
        fraction: of the peak for random weights: the learning rate; None where it was given.
        steps: of the run; None under a budget.
        epochs: passes over the data that these are.
    """

    config: RunConfig
    initial_loss: float | None
    parent_loss: float | None
    fraction: float | None
    steps: int | None
    epochs: float | None


def with_optimizer_of(parent: RunConfig, resolution: Resolution, spec: RunSpec) -> Resolution:
    """The settings of a run that starts with the weights of another one, with its optimizer, unless a preset is named.

    Adapters have an optimizer of their own.
    """
    if spec.preset is not None or resolution.config.lora:
        return resolution
    return resolution.choose("from_run", {"training": {"optimizer": parent.training.optimizer}})


def continued(
    resolution: Resolution,
    data: TrainingData,
    *,
    parent_loss: float | None,
    initial_loss: float | None,
) -> tuple[Resolution, Continued]:
    """Choose the learning rate, warm-up and length of a run that starts with the weights of another one.

    The learning rate is a fraction of the peak for random weights that grows with the distance of the new data from
    those that the weights were learned on, as the loss tells it.

    Args:
        resolution: fitted to the corpus.
        data: of the run, open.
        parent_loss: nats per token of its weights on the data that it held out; None where not known.
        initial_loss: the same of these weights on the data that this run holds out; None also where the model has a
            part that starts at random.
    """
    fixed = resolution.fixed["training"]
    fraction = _RATE_WITHOUT_GAP
    if initial_loss is not None and parent_loss is not None:
        fraction = float(np.exp(np.interp(initial_loss - parent_loss, _GAPS, np.log(_RATES))))
    rate = float(f"{fraction * peak(resolution.config):.2g}")
    resolution = resolution.choose(_reason(initial_loss, parent_loss), {"training": {"learning_rate": rate}})
    has_length = any(fixed.get(name) is not None for name in LENGTHS)
    if not has_length:
        length = {"steps": _length(data.steps_per_epoch), "epochs": None, "tokens": None}
        resolution = resolution.choose("size of the new data", {"training": length})
    steps = None
    if resolution.config.training.budget is None:
        steps = planned_steps(resolution.config.training, data, pace=1.0)
        rhythm = {
            "warmup_steps": min(resolution.config.training.warmup_steps, round(_WARMUP * steps)),
            "evaluate_every": max(1, -(-steps // _EVALUATIONS)),
            **({} if has_length else {"patience": _PATIENCE}),
        }
        resolution = resolution.choose("steps of continued training", {"training": rhythm})
    return resolution, Continued(
        resolution.config,
        initial_loss,
        parent_loss,
        None if "learning_rate" in fixed else fraction,
        steps,
        None if steps is None else steps / data.steps_per_epoch,
    )


def _reason(initial_loss: float | None, parent_loss: float | None) -> str:
    if initial_loss is None or parent_loss is None:
        return "continued training"
    return f"continued training: loss {initial_loss:.2f} at step 0, and {parent_loss:.2f} where it was trained"


def peak(config: RunConfig) -> float:
    """The learning rate that random weights of a model would be trained with at its highest."""
    width = config.model.d_model
    if config.lora:
        return _ADAPTER_RATE * (128 / width) ** 0.5
    if config.training.optimizer == "muon":
        return muon_learning_rate(width, translates=config.model.translates)
    return _ADAMW_RATE * 128 / width


def _length(steps_per_epoch: float) -> int:
    """The steps that data are worth on which a trained model learns on."""
    epochs = min(max(_EPOCHS, _FEWEST_STEPS / steps_per_epoch), _MOST_EPOCHS)
    return max(1, min(round(epochs * steps_per_epoch), _MOST_STEPS))


@dataclass(frozen=True)
class Overfit:
    """The checkpoint whose weights an extended run continues with, since the last one has overfit.

    Attributes:
        step: of the best checkpoint.
        loss: its validation loss, in nats per token.
        last_loss: that of the last checkpoint.
    """

    step: int
    loss: float
    last_loss: float


def overfit(state: TrainingState, last_loss: float | None) -> Overfit | None:
    """The best checkpoint of a run if the validation loss of the last one is well above its loss; None otherwise.

    Args:
        state: of the last checkpoint.
        last_loss: its validation loss, if that is known.
    """
    best_step, best_loss = state.best_step, state.best_loss
    if last_loss is None or best_loss is None or best_step is None or best_step >= state.step:
        return None
    return Overfit(best_step, best_loss, last_loss) if last_loss > (1 + _OVERFIT) * best_loss else None


def prolong(
    config: RunConfig,
    plan: RunPlan,
    state: TrainingState,
    longer: TrainingConfig,
    *,
    data: TrainingData,
    spent: float = 0.0,
    may_drop: bool = False,
) -> tuple[RunConfig, RunPlan]:
    """The settings and the plan of a run that is resumed with another length in the place of its own.

    It is extended if that is more than it had. A schedule that has begun to fall would jump up again if it were
    stretched: the learning rate falls from where it is instead, or from a tenth of the peak if that is more.
    What sees its data many times needs dropout then, not to overfit.

    Args:
        config: of the run.
        plan: of the run.
        state: how far it has come.
        longer: has the steps, epochs or tokens of the whole run, or a budget for what is still to come.
        data: of the run, open.
        spent: seconds that are gone of that budget.
        may_drop: whether dropout can be chosen too, since nobody has given it.
    """
    model, lengths = config.model, {name: getattr(longer, name) for name in LENGTHS}
    if longer.budget is not None:
        lengths["schedule"] = longer.schedule  # the one that goes with a budget
    training = dataclasses.replace(config.training, **lengths)
    steps, deadline = planned_steps(training, data, pace=state.seconds / max(1, state.step), spent=spent), None
    if longer.budget is not None:
        steps, deadline = state.step + steps, state.elapsed + parse_duration(longer.budget)
    changed = dataclasses.replace(plan, steps=steps, deadline=deadline)
    if deadline is not None or plan.deadline is not None or steps > plan.steps:
        decay_step, share = _decay(config.training, plan, state.step)
        changed = dataclasses.replace(changed, extended_at=state.step, decay_step=decay_step, decay_share=share)
        if may_drop and decay_step is not None:
            dropout = dropout_for(steps / data.steps_per_epoch, pairs=data.holds_pairs)
            model = model.replace(dropout=max(model.dropout, dropout))
    elif steps < plan.steps and plan.extended_at is None:
        changed = dataclasses.replace(changed, decay_step=None, decay_share=1.0)
    return dataclasses.replace(config, model=model, training=training), changed


def _decay(training: TrainingConfig, plan: RunPlan, step: int) -> tuple[int | None, float]:
    """After which step the learning rate of an extended run falls, and from what share of its peak.

    None and 1 where its schedule can be stretched, since it has not begun to fall, or does not depend on the end.
    """
    peak_rate, steps = training.learning_rate, plan.steps if plan.deadline is None else None
    rate = learning_rate(step, config=training, steps=steps, decay_start=plan.decay_start)
    is_endless = plan.decay_start is None and training.schedule in ("constant", "inverse-sqrt")
    if is_endless or step < training.warmup_steps or rate >= peak_rate:
        return None, 1.0
    return step, max(rate / peak_rate, _EXTENSION_RATE)
