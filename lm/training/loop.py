"""The training loop: a generator of events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator

from lm.config.training import Criterion
from lm.errors import TrainingError
from lm.training.evaluation import evaluate
from lm.training.events import DecayStarted, Event, StoppedEarly, TrainingWarning
from lm.training.run import Run, acquire


def train(
    run: Run, *, stop: Callable[[], bool] = lambda: False, saves_when_left: Callable[[], bool] = lambda: False
) -> Generator[Event, None, None]:
    """Train until the last step of the plan, or until `stop()` is true after a step; then save.

    Args:
        run: from `Run.open`.
        stop: called once per step on each rank; one that returns True stops all.
        saves_when_left: whether to save the run if the caller closes this generator early.

    Yields:
        Events in order; each has been logged before.

    Raises:
        TrainingError: a loss or a weight is no longer finite; checkpoints are untouched.
        InputError: another process is training this run, or a checkpoint cannot be saved.
    """
    if run.world.is_main:
        acquire(run.lock)
    try:
        if run.state.evaluation_due and (yield from _follow_step(run)):
            return
        while not run.is_complete:
            step = run.step()
            run.state = dataclasses.replace(run.state, evaluation_due=_is_evaluation_due(run), finished=False)
            run.log.log_step(step, epoch=run.epoch)
            yield step
            stopping = bool(run.world.all_reduce_max(stop()))
            if changed := run.follow_clock():
                yield changed
            if (yield from _follow_step(run, stopping=stopping, has_decayed=isinstance(changed, DecayStarted))):
                return
    except GeneratorExit:
        if saves_when_left() and run.state.step != run.saved_step:  # the rest of the step follows on resuming
            run.save(is_best=run.state.best_step == run.state.step)
        raise
    finally:
        try:
            run.writer.wait()
        finally:
            run.lock.release()


def _is_evaluation_due(run: Run) -> bool:
    is_affordable = run.clock is None or run.clock.can_evaluate()
    return run.is_complete or (_is_due(run.config.training.evaluate_every, run.state.step) and is_affordable)


def _follow_step(run: Run, *, stopping: bool = False, has_decayed: bool = False) -> Generator[Event, None, bool]:
    """Evaluate, decay on a plateau and save, if due after the last step; a run that was left there resumes here.

    Stopping defers an evaluation, except the last.

    Returns:
        Whether the run ends here.
    """
    is_last, interval = run.is_complete, run.config.training.checkpoint_every
    evaluated = run.state.evaluation_due and (is_last or not stopping)
    if evaluated:
        yield from _evaluate(run)
        if not run.state.finished and (decay := run.decay_on_plateau()) is not None:
            has_decayed = True
            yield decay
    is_best, is_ending = run.state.best_step == run.state.step, stopping or run.state.finished
    is_due = evaluated if interval is None else _is_due(interval, run.state.step)
    saved = is_ending or is_best or has_decayed or is_due
    if saved:
        yield from run.save(is_best=is_best)
    yield from run.writer.wait() if is_ending else run.writer.poll()
    if is_ending and not is_last:
        criterion: Criterion = "loss" if run.state.best_bleu is None else run.config.training.best_by
        yield StoppedEarly(run.state.step, patience_ran_out=run.state.finished, criterion=criterion)
    elif run.clock is not None:
        run.clock.record_step(is_plain=not evaluated and not saved)
    return is_ending


def _evaluate(run: Run) -> Iterator[Event]:
    """Evaluate and log the results; `run.state` says whether training is finished.

    If that fails, the run is saved first, unless its weights are broken.
    """
    try:
        for event in evaluate(run):
            if not isinstance(event, TrainingWarning):
                run.log.log_event(event)
            yield event
    except TrainingError:
        raise
    except Exception:
        if run.world.size == 1:  # saving is collective
            run.save(is_best=run.state.best_step == run.state.step)
        raise
    is_last = run.is_complete or _is_out_of_patience(run)
    run.state = dataclasses.replace(run.state, evaluation_due=False, finished=is_last)


def _is_due(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


def _is_out_of_patience(run: Run) -> bool:
    """Whether `patience` evaluations in a row were no better than the best.

    If the learning rate decays on a plateau, only evaluations after that count.
    """
    training, state, decayed_at = run.config.training, run.state, run.plan.decay_step
    if training.patience is None or state.best_step is None:
        return False
    if training.decay_patience is not None and decayed_at is None:
        return False
    waits_for = decayed_at if training.decay_patience is not None else None
    since = max(state.best_step, run.plan.extended_at or 0, waits_for or 0)
    return state.step - since >= training.patience * max(1, training.evaluate_every)
