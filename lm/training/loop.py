"""Training as a generator of events: the library yields what happened, the caller draws it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from lm.config.data import IGNORE_INDEX
from lm.config.run import RunConfig
from lm.config.training import Criterion
from lm.data.batch import Batch, micro_batch_rows
from lm.distributed.strategy import ParallelStrategy
from lm.errors import OutOfMemoryError, TrainingError
from lm.hardware import is_out_of_memory
from lm.model.cost import training_flops
from lm.optim.schedules import share_of_batch
from lm.training.compiling import failures_in_a_line
from lm.training.evaluation import evaluate
from lm.training.events import Decay, Evaluation, Event, Sample, Step, Stopped, Warned
from lm.training.objective import learned_tokens
from lm.training.run import Run, claim, diverged


def train(
    run: Run, *, stop: Callable[[], bool] = lambda: False, saves_when_left: Callable[[], bool] = lambda: False
) -> Generator[Event, None, None]:
    """Train to the last step of the plan, or until `stop()` is true after a step; then save.

    Args:
        run: from `start` or `resume`, or from `follow` in a process that is not the first of several.
        stop: asked once a step in each process; one of them is enough.
        saves_when_left: whether to save the run also where its caller closes this generator before the last step.

    Yields:
        what happened, in order; it is in the run's journal by then.

    Raises:
        TrainingError: a loss or a weight is no longer finite. Checkpoints stay as they are.
        InputError: another process is training this run, or a checkpoint cannot be saved.
        OSError: all is saved, but the last entries of the journal cannot be written.
    """
    if run.world.is_main:
        claim(run.lock)
    try:
        with run.writer:
            try:
                yield from _events(run, stop)
            except GeneratorExit:
                if saves_when_left():
                    _save_where_left(run)
                raise
        run.journal.finish()
    finally:
        run.lock.release()


def _events(run: Run, stop: Callable[[], bool]) -> Iterator[Event]:
    """The loop: a step, an evaluation and a checkpoint where they are due, and again."""
    if run.state.evaluation_due:
        yield from _evaluation_put_off(run)
        if run.state.finished:
            return
    while not run.is_complete:
        step = _step(run)
        run.journal.step(step, epoch=run.epoch)
        yield step
        if warning := run.journal.warning():
            yield Warned(step.step, warning)
        stopping, is_last = bool(run.world.all_reduce_max(stop())), run.is_complete
        if changed := run.settle_length():
            yield changed
        evaluation_due = is_last or _evaluation_due(run)
        run.state = dataclasses.replace(run.state, evaluation_due=evaluation_due, finished=False)
        evaluated = evaluation_due and (is_last or not stopping)
        if evaluated:
            yield from _evaluated(run)
            if not run.state.finished and (decay := run.decay_on_plateau()):
                changed = decay
                yield decay
        is_best = run.state.best_step == run.state.step
        ends = stopping or run.state.finished
        saved = ends or is_best or isinstance(changed, Decay) or _checkpoint_due(run, evaluated=evaluated)
        if saved:
            yield from run.save(is_best=is_best)
        yield from run.writer.wait() if ends else run.writer.written()
        if ends and not is_last:
            yield Stopped(run.state.step, patience_ran_out=run.state.finished, criterion=_criterion(run))
            return
        if run.clock is not None:
            run.clock.note(is_plain=not evaluated and not saved)


def _save_where_left(run: Run) -> None:
    """Save a run between two events of a step, so that the rest of that step comes when it is resumed."""
    state = run.state
    if state.step == run.saved_at:
        return
    is_due = run.is_complete or _due(run.config.training.evaluate_every, state.step)
    run.state = dataclasses.replace(state, evaluation_due=is_due, finished=False)
    run.save(is_best=state.best_step == state.step)


def _evaluation_put_off(run: Run) -> Iterator[Event]:
    """Make up for the evaluation that stopping had put off, and save what it has shown."""
    yield from _evaluated(run)
    yield from run.save(is_best=run.state.best_step == run.state.step)
    if run.state.finished:
        yield from run.writer.wait()
    if run.state.finished and not run.is_complete:
        yield Stopped(run.state.step, patience_ran_out=True, criterion=_criterion(run))
    if run.clock is not None:
        run.clock.note(is_plain=False)


def _evaluated(run: Run) -> Iterator[Evaluation | Sample | Warned]:
    """Evaluate the run as it is and note the results; its state then says whether that was the last evaluation."""
    for event in _evaluation(run):
        if not isinstance(event, Warned):
            run.journal.note(event)
        yield event
    is_last = run.is_complete or _out_of_patience(run)
    run.state = dataclasses.replace(run.state, evaluation_due=False, finished=is_last)


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _evaluation_due(run: Run) -> bool:
    """Whether it is time to evaluate, and under a budget, whether there is time to."""
    is_due = _due(run.config.training.evaluate_every, run.state.step)
    return is_due and (run.clock is None or run.clock.has_time_to_pause())


def _checkpoint_due(run: Run, *, evaluated: bool) -> bool:
    """Whether it is time to save: with each evaluation, unless a number of steps was given."""
    every = run.config.training.checkpoint_every
    return evaluated if every is None else _due(every, run.state.step)


def _out_of_patience(run: Run) -> bool:
    """Whether as many evaluations in a row as the config has patience for were no better than the best.

    Where the learning rate decays on a plateau, those before the decay don't count.
    """
    training, state, decays_since = run.config.training, run.state, run.plan.decay_step
    if training.patience is None or state.best_step is None:
        return False
    since = max(state.best_step, run.plan.extended_at or 0)
    if training.decay_patience is not None:
        if decays_since is None:
            return False
        since = max(since, decays_since)
    return state.step - since >= training.patience * max(1, training.evaluate_every)


def _criterion(run: Run) -> Criterion:
    """What makes an evaluation the best: BLEU where that is asked for and there is something to translate."""
    return "loss" if run.state.best_bleu is None else run.config.training.best_by


def _step(run: Run) -> Step:
    """Take one optimizer step; TrainingError if its loss or gradient is not finite, before a weight has changed."""
    began = time.perf_counter()
    config, state = run.config.training, run.state
    rate = run.rate
    for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
        group["lr"] = rate
    torch.manual_seed(_fold(config.seed, state.step, run.world.rank))
    batch = _batch(run)
    tokens, learned = batch.tokens, learned_tokens(batch, source_loss=config.source_loss)
    with failures_in_a_line() if config.compile else nullcontext(), _naming_what_needs_memory(run, batch):
        total = _accumulate(run, batch)
    total, norm = run.world.all_reduce(total), _clipped(run.strategy, config.clip)
    total_nats, total_nll, norm = together(total, norm).tolist()  # the one wait for a GPU
    mean = total_nats / learned
    if not math.isfinite(mean) or not math.isfinite(norm):
        raise diverged(run, f"the loss is {mean} and the gradient's norm {norm}", step=state.step + 1)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.average is not None:
        run.average.update(state.step + 1)
    flops, seconds = batch_flops(run.config, batch), time.perf_counter() - began
    run.state = dataclasses.replace(
        state,
        step=state.step + 1,
        samples=state.samples + batch.rows,
        tokens=state.tokens + tokens,
        flops=state.flops + flops,
        seconds=state.seconds + seconds,
    )
    return Step(run.state.step, mean, rate, norm, tokens, flops, seconds, nll=total_nll / batch.predicted)


@contextmanager
def _naming_what_needs_memory(run: Run, batch: Batch) -> Iterator[None]:
    """Turn a lack of memory in a batch's passes through the model into an OutOfMemoryError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        rows = micro_batch_rows(run.config, batch) or -(-batch.rows // run.world.size)
        raise OutOfMemoryError(
            f"{run.folder}: step {run.state.step + 1} needs more memory than there is, with {rows} x "
            f"{batch.inputs.shape[1]} tokens in one pass: pass fewer at once, or recompute activations; saved "
            "checkpoints are untouched",
            settings=("micro_batch_size", "checkpoint_activations"),
        ) from error


def _batch(run: Run) -> Batch:
    """The batch of the next step."""
    config, state = run.config.training, run.state
    share, next_share = (share_of_batch(step, config=config) for step in (state.step, state.step + 1))
    if run.ahead is None:
        return run.data.batch(state.samples, share=share)
    return run.ahead.batch(state.samples, share=share, next_share=next_share)


def _accumulate(run: Run, batch: Batch) -> Tensor:
    """Gradients of the mean loss over all that is learned of a batch, in micro-batches; returns (2,) summed nats.

    Each of several processes puts its rows through the model, and the nats are those of its rows.
    """
    total, config = torch.zeros(2, device=run.hardware.torch_device), run.config.training
    learned = learned_tokens(batch, source_loss=config.source_loss)
    for micro_batch in run.world.micro_batches(batch, rows=micro_batch_rows(run.config, batch)):
        with run.strategy.accumulate(micro_batch):
            loss, nats = run.strategy(micro_batch.batch)
            (run.strategy.scale_loss(loss, micro_batch) / learned).backward()
        if micro_batch.is_real:
            total += nats
    return total


def together(total: Tensor, norm: Tensor) -> Tensor:
    """Sums of nats and the norm of the gradients, which offloading leaves on the CPU, as one tensor."""
    return torch.cat((total, norm.to(total.device)[None]))


def _clipped(strategy: ParallelStrategy, most: float) -> Tensor:
    """The norm of the gradients, which are scaled down to `most` if they are above it; 0 leaves them alone."""
    norm = strategy.gradient_norm()
    # torch's own way multiplies by 1 too, over all the memory of the gradients; to ask a GPU would be to wait for it
    if most > 0 and (norm.is_cuda or most < float(norm) < math.inf):
        strategy.clip_gradients(most, norm)
    return norm


def batch_flops(config: RunConfig, batch: Batch) -> float:
    """FLOPs of training on a batch: of its padding too, but of the output layer only where a token is predicted."""
    rows, length = batch.inputs.shape
    predicted = batch.predicted
    if batch.source_targets is not None:
        predicted += int((batch.source_targets != IGNORE_INDEX).sum())
    source_length = 0 if batch.source is None else batch.source.shape[1]
    return training_flops(
        config.model,
        rows=rows,
        length=length,
        source_length=source_length,
        predicted=predicted / rows,
        passes=config.training.passes,
        lora=config.lora,
    )


def _evaluation(run: Run) -> Iterator[Evaluation | Sample | Warned]:
    """The results of an evaluation; if it fails, the run is saved first, unless its weights are what is broken."""
    try:
        yield from evaluate(run)
    except TrainingError:
        raise
    except Exception:
        if run.world.size == 1:  # of several, the others are not there to be saved too
            run.save(is_best=run.state.best_step == run.state.step)
        raise


def _fold(seed: int, step: int, rank: int) -> int:
    """One seed for each step of a run in each of its processes; neighbouring seeds share no step's."""
    return (seed * 0x9E3779B1 + step * 0x85EBCA77 + rank * 0xC2B2AE3D27D4EB4F + 1) % 2**63
