"""Training as a generator of events: the library yields what happened, the caller draws it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import nn

from lm.data.batches import Batch
from lm.errors import TrainingError
from lm.model.cost import training_flops
from lm.training.compiling import failures_in_a_line
from lm.training.evaluation import report
from lm.training.events import Decay, Evaluation, Event, Sample, Saved, Step, Stopped
from lm.training.journal import Journal
from lm.training.objective import summed_loss
from lm.training.run import Run, save
from lm.training.schedules import learning_rate, share_of_batch


def train(run: Run, *, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Train to the last step of the plan, or until `stop()` is true after a step; then save.

    Args:
        run: from `start` or `resume`.
        stop: asked once a step.

    Yields:
        what happened, in order; it is in the run's journal by then.

    Raises:
        TrainingError: the loss is no longer finite. Checkpoints stay as they are.
    """
    journal = Journal(run.folder)
    while not run.is_complete:
        step = _step(run)
        journal.step(step, epoch=run.epoch)
        yield step
        stopping, is_last, evaluated = stop(), run.is_complete, False
        if decay_begins := run.settle_length():
            yield Decay(run.state.step, run.plan.steps)
        is_best = out_of_patience = False
        if is_last or (_due(run.config.training.evaluate_every, run.state.step) and not stopping):
            for event in _evaluation(run):
                journal.note(event)
                yield event
                is_best = is_best or (isinstance(event, Evaluation) and event.is_best)
            out_of_patience = _out_of_patience(run)
            evaluated = True
        ends = is_last or stopping or out_of_patience
        run.state = dataclasses.replace(run.state, finished=is_last or out_of_patience)
        saved = ends or is_best or decay_begins or _checkpoint_due(run)
        if saved:
            yield Saved(run.state.step, save(run, is_best=is_best))
        if ends and not is_last:
            yield Stopped(run.state.step, patience_ran_out=out_of_patience)
            return
        if run.clock is not None:
            run.clock.note(is_plain=not evaluated and not saved)


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _checkpoint_due(run: Run) -> bool:
    training = run.config.training
    every = training.evaluate_every if training.checkpoint_every is None else training.checkpoint_every
    return _due(every, run.state.step)


def _out_of_patience(run: Run) -> bool:
    training, state = run.config.training, run.state
    if training.patience is None or state.best_step is None:
        return False
    return state.step - state.best_step >= training.patience * max(1, training.evaluate_every)


def _step(run: Run) -> Step:
    began = time.perf_counter()
    config, state = run.config.training, run.state
    rate = learning_rate(state.step, config=config, steps=run.plan.steps if run.clock is None else None)
    for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
        group["lr"] = rate
    torch.manual_seed(_fold(config.seed, state.step))
    batch = run.data.batch(state.samples, share=share_of_batch(state.step, config=config))
    tokens = batch.predicted
    with failures_in_a_line() if config.compile else nullcontext():
        mean = _accumulate(run, batch) / tokens
    norm = _clipped(run.model, config.clip)
    if not math.isfinite(mean) or not math.isfinite(norm):
        raise TrainingError(
            f"{run.folder}: the loss is {mean} and the gradient's norm {norm} at step {state.step + 1}; "
            "saved checkpoints are untouched: try a lower --learning-rate or --dtype float32"
        )
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.average is not None:
        run.average.update(state.step + 1)
    flops, seconds = batch_flops(run, batch), time.perf_counter() - began
    run.state = dataclasses.replace(
        state,
        step=state.step + 1,
        samples=state.samples + batch.rows,
        tokens=state.tokens + tokens,
        flops=state.flops + flops,
        seconds=state.seconds + seconds,
    )
    return Step(run.state.step, mean, rate, norm, tokens, flops, seconds)


def _accumulate(run: Run, batch: Batch) -> float:
    """Gradients of the mean loss over all targets of a batch, in micro-batches; returns the summed nats."""
    total, predicted = torch.zeros((), device=run.hardware.torch_device), batch.predicted
    config = run.config.training
    for part in batch.split(config.micro_batch_size):
        nats = summed_loss(
            run.model,
            part,
            run.hardware,
            states=run.states,
            label_smoothing=config.label_smoothing,
            r_drop=config.r_drop,
        )
        (nats / predicted).backward()
        total += nats.detach()
    return float(total)


def _clipped(model: nn.Module, most: float) -> float:
    """The norm of the gradients, which are scaled down to `most` if they are above it; 0 leaves them alone."""
    total = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    norm = float(total)
    if 0 < most < norm < math.inf:  # torch's own way multiplies by 1 too, over all the memory of the gradients
        nn.utils.clip_grads_with_norm_(model.parameters(), most, total)
    return norm


def batch_flops(run: Run, batch: Batch) -> float:
    """Arithmetic of training on a batch."""
    rows, length = batch.inputs.shape
    source_length = 0 if batch.source is None else batch.source.shape[1]
    passes = run.config.training.passes
    return training_flops(run.config.model, rows=rows, length=length, source_length=source_length, passes=passes)


def _evaluation(run: Run) -> Iterator[Evaluation | Sample]:
    """What evaluating brings; if it fails, what was trained is saved first."""
    try:
        yield from report(run)
    except Exception:
        save(run, is_best=False)
        raise


def _fold(seed: int, step: int) -> int:
    """One seed for each step of a run; neighbouring seeds share no step's."""
    return (seed * 0x9E3779B1 + step * 0x85EBCA77 + 1) % 2**63
