"""The training loop: a generator of events. After each step it decides whether to decay, evaluate, save and stop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator

from lm.training.evaluation import evaluate
from lm.training.optimizers import total_steps_from_decay
from lm.training.run import Run
from lm.training.run_log import DecayStarted, Event, StoppedEarly, log_event, log_step

_OVERFIT_DECAY = 1 / 3
"""Length of the decay from the best checkpoint of a run that overfits, as a fraction of the usual length after as many
steps: a longer one overfits again before the learning rate is low (docs/lab/recipe.md)."""


def train(run: Run, *, stop: Callable[[], bool] = lambda: False) -> Generator[Event, None, None]:
    """Train until the last step of the plan, or until `stop()` is true after a step; then save, and release the run.

    A single process saves too if the generator is closed early, unless `stop()` is true.

    Args:
        run: from `Run.open`.
        stop: called once per step on each rank; one that returns True stops all.

    Yields:
        Events in order; each has been logged before.

    Raises:
        TrainingError: a loss or a weight is no longer finite; checkpoints are untouched.
        InputError: a checkpoint cannot be saved.
    """
    try:
        if run.state.evaluation_due and (yield from _follow_step(run)):
            return
        while not run.is_complete:
            step = run.step()
            is_due = _is_due(run.config.training.evaluate_every, run.state.step)
            is_due = run.is_complete or (is_due and (run.clock is None or run.clock.can_evaluate()))
            run.state = dataclasses.replace(run.state, evaluation_due=is_due, finished=False)
            if run.world.is_main:
                log_step(run.folder, step, epoch=run.state.samples / run.data.samples)
            yield step
            is_stopping = bool(run.world.all_reduce_max(stop()))
            if decay := _follow_clock(run):
                yield decay
            if (yield from _follow_step(run, is_stopping=is_stopping, has_decayed=decay is not None)):
                return
    except GeneratorExit:
        # saving is collective; the rest of the step follows on resuming
        if run.world.size == 1 and run.state.step != run.saved_step and not stop():
            run.save()
        raise
    finally:
        run.close()


def _follow_step(run: Run, *, is_stopping: bool = False, has_decayed: bool = False) -> Generator[Event, None, bool]:
    """Evaluate, decay on a plateau and save, if due after the last step; a run that was left there resumes here.

    Stopping defers an evaluation, except the last.

    Returns:
        Whether the run ends here.
    """
    training, is_last = run.config.training, run.is_complete
    evaluated = run.state.evaluation_due and (is_last or not is_stopping)
    if evaluated:
        yield from _evaluate(run)
        if not run.state.finished and (decay := _decay_on_plateau(run)):
            has_decayed = True
            yield decay
    is_ending = is_stopping or run.state.finished
    interval = training.evaluate_every if training.checkpoint_every is None else training.checkpoint_every
    is_due = _is_due(interval, run.state.step)
    saves = is_ending or has_decayed or is_due or run.state.best_step == run.state.step
    if saves:
        yield from run.save()
    yield from run.finish_saving(wait=is_ending)
    if is_ending and not is_last:
        yield StoppedEarly(run.state.step, patience_ran_out=run.state.finished)
    elif run.clock is not None:
        run.clock.record_step(evaluated=evaluated, saved=saves)
    return is_ending


def _evaluate(run: Run) -> Iterator[Event]:
    """Evaluate and log the results; `run.state` says whether training is finished."""
    for event in evaluate(run):
        if run.world.is_main:
            log_event(run.folder, event)
        yield event
    is_last = run.is_complete or _is_out_of_patience(run)
    run.state = dataclasses.replace(run.state, evaluation_due=False, finished=is_last)


def _is_due(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


def _is_memorising(run: Run) -> bool:
    """Whether a validation loss that no longer falls won't fall again: the training loss is below the best one.

    Until then it fluctuates, above all with small batches; under a budget there is time to wait. Without one this is
    true, as somebody has asked for patience.
    """
    return run.config.training.budget is None or run.state.training_loss < (run.state.best_loss or 0.0)


def _is_out_of_patience(run: Run) -> bool:
    """Whether `patience` evaluations in a row were no better than the best.

    Once the learning rate decays, only evaluations after that count.
    """
    training, state, plan = run.config.training, run.state, run.plan
    waits_for_decay = training.decay_patience is not None and plan.decay_step is None
    if training.patience is None or state.best_step is None or waits_for_decay or not _is_memorising(run):
        return False
    since = max(state.best_step, plan.extended_at or 0, plan.decay_step or 0)
    return state.step - since >= training.patience * max(1, training.evaluate_every)


def _follow_clock(run: Run) -> DecayStarted | None:
    """Under a budget, start the decay when the time left requires it; later, move an end that misses the deadline."""
    if run.clock is None:
        return None
    step, training, plan = run.state.step, run.config.training, run.plan
    if plan.budget_seconds is not None:
        steps = run.clock.total_if_due(step, config=training, since=plan.decay_step or 0)
        if steps is None:
            return None
        return _start_decay(run, steps, plan.decay_scale, "by the clock")
    steps = run.clock.rescheduled_total(step, plan.steps, config=training)
    if steps is not None and not (plan.on_plateau and steps > plan.steps):  # then the rest of the budget isn't used
        what = f"the last step is now {steps:,}, by the clock"
        run.change_plan(what, steps=steps, decay_step=step, decay_scale=_peak_fraction(run))
    return None


def _decay_on_plateau(run: Run) -> DecayStarted | None:
    """Start the decay, from the best checkpoint, if the validation loss no longer falls (`decay_patience`)."""
    state, training, plan = run.state, run.config.training, run.plan
    if training.decay_patience is None or plan.decay_step is not None or state.best_step is None:
        return None
    waits = state.step - state.best_step < training.decay_patience * max(1, training.evaluate_every)
    if waits or not _is_memorising(run):
        return None
    steps = max(state.step + 1, total_steps_from_decay(state.step, config=training))
    if run.clock is None or plan.budget_seconds is None:
        steps = min(steps, plan.steps)
    else:
        steps = min(steps, run.clock.affordable_total(state.step, steps, config=training))
    return _start_decay(run, steps, _peak_fraction(run), "as the validation loss no longer falls", on_plateau=True)


def _peak_fraction(run: Run) -> float:
    """Return the learning rate of the next step as a fraction of the peak."""
    peak = run.config.training.learning_rate
    return run.learning_rate / peak if peak else 1.0


def _start_decay(run: Run, steps: int, fraction: float, reason: str, *, on_plateau: bool = False) -> DecayStarted:
    """Start the decay of the learning rate from a fraction of its peak; collective.

    Args:
        on_plateau: go back to the weights of the best checkpoint, as later steps have only overfit. The step count
            continues, and with it the order of the data.
    """
    step, restored = run.state.step, run.load_best() if on_plateau else None
    if restored is not None:
        reason = f"{reason}, from the weights of step {restored:,}, the best"
        length = total_steps_from_decay(restored, config=run.config.training) - restored
        steps = min(steps, step + max(1, math.ceil(_OVERFIT_DECAY * length)))
    what = f"the learning rate decays to step {steps:,}, {reason}"
    run.change_plan(
        what, steps=steps, budget_seconds=None, decay_step=step, decay_scale=fraction, on_plateau=on_plateau
    )
    return DecayStarted(step, steps, on_plateau=on_plateau, restored_step=restored)
