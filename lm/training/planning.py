"""The plan of a run: how long it is to be, on which hardware, and on which data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lm.budget.pace import Pace
from lm.config import durations
from lm.config.run import Plan, RunConfig
from lm.config.training import LENGTHS, TrainingConfig
from lm.data.kinds import data_key
from lm.data.training_data import TrainingData
from lm.errors import UsageError
from lm.optimization.schedules import steps_for
from lm.run_folder import TrainingState
from lm.training.arithmetic import training_hardware
from lm.training.memory import fitting_tokens

_MOST_STEPS = 1 << 53
"""Steps that a float64 can still count one by one."""


def planned(
    config: RunConfig,
    folder: Path,
    data: TrainingData,
    *,
    pace: Pace | None = None,
    spent: float = 0.0,
    processes: int = 1,
) -> RunConfig:
    """The settings of a new run with a plan.

    Args:
        config: what to train.
        folder: of the prepared data.
        data: the same, open.
        pace: how fast the run goes and on which hardware, where that was measured.
        spent: seconds of a budget that are gone already.
        processes: that train the run together.
    """
    if pace is None:
        hardware = training_hardware(config, next(data.batch(0).split(config.training.micro_batch_size)))
    else:
        hardware = pace.hardware
    fitted = config.training.micro_batch_size is None
    plan = Plan(
        **vars(hardware),
        processes=processes,
        micro_batch_tokens=fitting_tokens(config, hardware, processes=processes) if fitted else None,
        steps=planned_steps(config.training, data, pace=1.0 if pace is None else pace.step, spent=spent),
        data=str(folder.resolve()),
        data_key=data_key(folder),
        deadline=None if config.training.budget is None else durations.seconds(config.training.budget),
    )
    return dataclasses.replace(config, plan=plan)


def prolonged(
    config: RunConfig, plan: Plan, state: TrainingState, longer: TrainingConfig, *, data: TrainingData, spent: float
) -> tuple[RunConfig, Plan]:
    """The settings and the plan of a run that has come some way, with another length in the place of their own.

    Args:
        config: of the run.
        plan: of the run.
        state: how far it has come.
        longer: has the steps, epochs or tokens of the whole run, or a budget for what is still to come.
        data: of the run, open.
        spent: seconds that are gone of that budget.
    """
    lengths = {name: getattr(longer, name) for name in LENGTHS}
    if longer.budget is not None:
        lengths["schedule"] = longer.schedule  # the one that goes with a budget
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, **lengths))
    pace = state.seconds / max(1, state.step)
    steps = planned_steps(config.training, data, pace=pace, spent=spent)
    deadline = None
    if longer.budget is not None:
        steps, deadline = state.step + steps, state.elapsed + durations.seconds(longer.budget)
    return config, dataclasses.replace(plan, steps=steps, deadline=deadline, decay_step=None, decay_share=1.0)


def planned_steps(config: TrainingConfig, data: TrainingData, *, pace: float, spent: float = 0.0) -> int:
    """How many optimizer steps the steps, epochs or tokens asked for come to.

    A budget comes to what is left of it, at so many seconds a step.
    """
    epochs = config.epochs if config.tokens is None else config.tokens / data.tokens
    if epochs is not None:
        steps = max(1, steps_for(epochs * data.steps_per_epoch, config=config))
        if steps > _MOST_STEPS:
            length = "epochs" if config.tokens is None else "tokens"
            raise UsageError(f"{length} come to {steps:.1e} steps, more than can be trained; give fewer (--{length})")
        return steps
    if config.budget is not None:
        return max(1, round((durations.seconds(config.budget) - spent) / pace))
    if config.steps is None:
        raise UsageError("say how long to train: --steps, --epochs, --tokens or --budget")
    return config.steps
