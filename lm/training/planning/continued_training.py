"""Continued training: fine-tuning another run's weights, and extending a run beyond its planned end.

The constants come from the runs in docs/lab/recipe.md, section "Continued training".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from lm.config.presets import muon_learning_rate
from lm.config.run_config import RunConfig, RunPlan
from lm.config.run_spec import RunSpec
from lm.config.settings import LENGTHS
from lm.config.training import TrainingConfig, parse_duration
from lm.data.training_data import TrainingData
from lm.optim.schedules import learning_rate
from lm.run_folder import TrainingState
from lm.training.planning.regularisation import choose_dropout
from lm.training.planning.resolve import Resolution, compute_steps

_ADAMW_RATE = 3e-3
"""Peak learning rate of AdamW from random weights at width 128; scaled with 1 / width (Yang et al. 2022)."""
_ADAPTER_RATE = 4e-2
"""The same for low-rank adapters."""
_LOSS_GAPS, _FRACTIONS = (0.0, 3.0), (0.1, 0.7)
"""First loss on the new data minus the expected one, in nats per token, and the learning rate for it as a fraction of
the peak from random weights; interpolated linearly in its logarithm. The expected loss is that of the parent on its own
data, or of an n-gram model of the new data if that is lower."""
_DEFAULT_FRACTION = 0.1
"""The fraction if one of the losses is not known."""
_EPOCHS, _MAX_EPOCHS, _MIN_STEPS, _MAX_STEPS = 3.0, 10.0, 50, 2000
"""Small data sets are seen more often, until there are enough steps; large ones less often."""
_WARMUP, _EVALUATIONS, _PATIENCE = 0.1, 10, 3

_EXTENSION_RATE = 0.1
"""Minimum learning rate from which an extended run decays, as a fraction of the peak."""
_OVERFIT = 0.01
"""Relative increase of the last validation loss over the best from which a checkpoint has overfit."""


@dataclass(frozen=True)
class ContinuedTrainingChosen:
    """Event: the settings of a run that starts from another run's weights have been chosen.

    Attributes:
        initial_loss: nats per token on held-out data before the first step, or None.
        parent_loss: the same of the other run on its own data.
        ngram_loss: the same of the best n-gram model of the new data on their held-out split, or None.
        fraction: learning rate as a fraction of the peak from random weights; None if it was given.
        steps: of the run; None under a budget.
        epochs: of the run; None under a budget.
    """

    config: RunConfig
    initial_loss: float | None
    parent_loss: float | None
    ngram_loss: float | None
    fraction: float | None
    steps: int | None
    epochs: float | None


def inherit_optimizer(parent: RunConfig, resolution: Resolution, spec: RunSpec) -> Resolution:
    """Choose the optimizer of the parent run, unless a preset is given or adapters are trained."""
    if spec.preset is not None or resolution.config.lora:
        return resolution
    return resolution.choose("from_run", {"training": {"optimizer": parent.training.optimizer}})


def choose_continued_training(
    resolution: Resolution,
    data: TrainingData,
    *,
    parent_loss: float | None,
    initial_loss: float | None,
    ngram_loss: float | None = None,
) -> tuple[Resolution, ContinuedTrainingChosen]:
    """Choose learning rate, warm-up and length of a run that starts from another run's weights.

    The learning rate is a fraction of the peak from random weights; the fraction grows with the difference of the loss
    on the new data from what can be expected there.

    Args:
        resolution: fitted to the corpus.
        parent_loss: nats per token of the weights on the parent's held-out data, or None.
        initial_loss: the same on the new held-out data; None also if a part of the model starts at random.
        ngram_loss: the same of the best n-gram model of the new data, or None.
    """
    fixed = resolution.fixed["training"]
    fraction = _DEFAULT_FRACTION
    if initial_loss is not None and parent_loss is not None:
        expected = parent_loss if ngram_loss is None else min(parent_loss, ngram_loss)
        fraction = float(np.exp(np.interp(initial_loss - expected, _LOSS_GAPS, np.log(_FRACTIONS))))
    rate = float(f"{fraction * peak_learning_rate(resolution.config):.2g}")
    resolution = resolution.choose(
        _reason(initial_loss, parent_loss, ngram_loss), {"training": {"learning_rate": rate}}
    )
    has_length = any(fixed.get(name) is not None for name in LENGTHS)
    if not has_length:
        length = {"steps": _default_steps(data.steps_per_epoch), "epochs": None, "tokens": None}
        resolution = resolution.choose("size of the new data", {"training": length})
    steps = None
    if resolution.config.training.budget is None:
        steps = compute_steps(resolution.config.training, data, step_seconds=1.0)
        rhythm = {
            "warmup_steps": min(resolution.config.training.warmup_steps, round(_WARMUP * steps)),
            "evaluate_every": max(1, -(-steps // _EVALUATIONS)),
            **({} if has_length else {"patience": _PATIENCE}),
        }
        resolution = resolution.choose("steps of continued training", {"training": rhythm})
    return resolution, ContinuedTrainingChosen(
        resolution.config,
        initial_loss,
        parent_loss,
        ngram_loss,
        None if "learning_rate" in fixed else fraction,
        steps,
        None if steps is None else steps / data.steps_per_epoch,
    )


def _reason(initial_loss: float | None, parent_loss: float | None, ngram_loss: float | None) -> str:
    if initial_loss is None or parent_loss is None:
        return "continued training"
    losses = f"loss {initial_loss:.2f} at step 0, and {parent_loss:.2f} where it was trained"
    if ngram_loss is not None and ngram_loss < parent_loss:
        losses = f"{losses}; {ngram_loss:.2f} by n-grams of the new text"
    return f"continued training: {losses}"


def peak_learning_rate(config: RunConfig) -> float:
    """Return the peak learning rate for training the model from random weights."""
    width = config.model.d_model
    if config.lora:
        return _ADAPTER_RATE * (128 / width) ** 0.5
    if config.training.optimizer == "muon":
        return muon_learning_rate(width, translates=config.model.translates)
    return _ADAMW_RATE * 128 / width


def _default_steps(steps_per_epoch: float) -> int:
    """Return the number of steps for a number of steps per epoch."""
    epochs = min(max(_EPOCHS, _MIN_STEPS / steps_per_epoch), _MAX_EPOCHS)
    return max(1, min(round(epochs * steps_per_epoch), _MAX_STEPS))


@dataclass(frozen=True)
class OverfitCheckpoint:
    """The checkpoint that an extended run continues from, because the last one has overfit.

    Attributes:
        step: of the best checkpoint.
        loss: its validation loss, in nats per token.
        last_loss: validation loss of the last checkpoint.
    """

    step: int
    loss: float
    last_loss: float


def find_overfit(state: TrainingState, last_loss: float | None) -> OverfitCheckpoint | None:
    """Return the best checkpoint if the validation loss of the last one is clearly higher, else None.

    Args:
        state: of the last checkpoint.
    """
    best_step, best_loss = state.best_step, state.best_loss
    if last_loss is None or best_loss is None or best_step is None or best_step >= state.step:
        return None
    return OverfitCheckpoint(best_step, best_loss, last_loss) if last_loss > (1 + _OVERFIT) * best_loss else None


def extend_run(
    config: RunConfig,
    plan: RunPlan,
    state: TrainingState,
    new_length: TrainingConfig,
    *,
    data: TrainingData,
    spent: float = 0.0,
    can_choose_dropout: bool = False,
) -> tuple[RunConfig, RunPlan]:
    """Return config and plan of a run that is resumed with another length.

    If a decay has started, the learning rate of an extended run continues from its value, or from a tenth of the peak
    if that is higher, instead of jumping back. Dropout is chosen if the data are seen many times.

    Args:
        new_length: with the new steps, epochs or tokens of the whole run, or a budget for the rest of it.
        spent: seconds of that budget used before.
        can_choose_dropout: whether dropout can be chosen, because the user has not set it.
    """
    model, lengths = config.model, {name: getattr(new_length, name) for name in LENGTHS}
    if new_length.budget is not None:
        lengths["schedule"] = new_length.schedule  # the one that goes with a budget
    training = dataclasses.replace(config.training, **lengths)
    steps = compute_steps(training, data, step_seconds=state.training_seconds / max(1, state.step), spent=spent)
    budget_seconds = None
    if new_length.budget is not None:
        steps, budget_seconds = state.step + steps, state.budget_seconds_used + parse_duration(new_length.budget)
    changed = dataclasses.replace(plan, steps=steps, budget_seconds=budget_seconds, max_steps=None, on_plateau=False)
    if budget_seconds is not None or plan.budget_seconds is not None or steps > plan.steps:
        decay_step, fraction = _decay_start(config.training, plan, state.step)
        changed = dataclasses.replace(changed, extended_at=state.step, decay_step=decay_step, decay_scale=fraction)
        if can_choose_dropout and decay_step is not None:
            dropout = choose_dropout(steps / data.steps_per_epoch, pairs=data.holds_pairs)
            model = model.replace(dropout=max(model.dropout, dropout))
    elif steps < plan.steps and plan.extended_at is None:
        changed = dataclasses.replace(changed, decay_step=None, decay_scale=1.0)
    return dataclasses.replace(config, model=model, training=training), changed


def _decay_start(training: TrainingConfig, plan: RunPlan, step: int) -> tuple[int | None, float]:
    """Return after which step the learning rate of an extended run decays, and from what fraction of its peak.

    None and 1 if its schedule can be stretched, because it has not started to decay or does not depend on the end.
    """
    peak_rate, steps = training.learning_rate, plan.steps if plan.budget_seconds is None else None
    rate = learning_rate(step, config=training, steps=steps, decay_start=plan.decay_start)
    is_endless = plan.decay_start is None and training.schedule in ("constant", "inverse-sqrt")
    if is_endless or step < training.warmup_steps or rate >= peak_rate:
        return None, 1.0
    return step, max(rate / peak_rate, _EXTENSION_RATE)
