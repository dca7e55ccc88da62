"""The training loop: a generator of events."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from lm.config.data import IGNORE_INDEX
from lm.config.run_config import RunConfig
from lm.config.training import Criterion
from lm.data.batch import Batch, micro_batch_rows
from lm.errors import OutOfMemoryError, TrainingError
from lm.hardware import is_out_of_memory
from lm.model.cost import training_flops
from lm.optim.schedules import batch_fraction
from lm.training.compiling import converting_compile_errors
from lm.training.evaluation import evaluate
from lm.training.events import DecayStarted, Evaluation, Event, Sample, Step, StoppedEarly, TrainingWarning
from lm.training.objective import count_learned_tokens
from lm.training.run import Run, acquire_lock, divergence_error


def train(
    run: Run, *, stop: Callable[[], bool] = lambda: False, saves_when_left: Callable[[], bool] = lambda: False
) -> Generator[Event, None, None]:
    """Train until the last step of the plan, or until `stop()` is true after a step; then save.

    Args:
        run: from `start_run` or `resume_run`, or from `join_run` on ranks other than 0.
        stop: called once per step on each rank; one that returns True stops all.
        saves_when_left: whether to save the run if the caller closes this generator early.

    Yields:
        Events in order; each has been logged before.

    Raises:
        TrainingError: a loss or a weight is no longer finite; checkpoints are untouched.
        InputError: another process is training this run, or a checkpoint cannot be saved.
        OSError: everything is saved except the last entries of the logs.
    """
    if run.world.is_main:
        acquire_lock(run.lock)
    try:
        with run.writer:
            try:
                yield from _run_loop(run, stop)
            except GeneratorExit:
                if saves_when_left():
                    _save_interrupted(run)
                raise
        run.log.flush()
    finally:
        run.lock.release()


def _run_loop(run: Run, stop: Callable[[], bool]) -> Iterator[Event]:
    """Take steps, and evaluate and save when due."""
    if run.state.evaluation_due and (yield from _follow_step(run)):
        return
    while not run.is_complete:
        step = _train_step(run)
        run.state = dataclasses.replace(run.state, evaluation_due=_is_evaluation_due(run), finished=False)
        run.log.log_step(step, epoch=run.epoch)
        yield step
        if warning := run.log.pop_warning():
            yield TrainingWarning(step.step, warning)
        stopping = bool(run.world.all_reduce_max(stop()))
        if changed := run.update_schedule():
            yield changed
        if (yield from _follow_step(run, stopping=stopping, has_decayed=isinstance(changed, DecayStarted))):
            return


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
        yield from _evaluate_and_log(run)
        if not run.state.finished and run.is_on_plateau():
            has_decayed = True
            yield run.decay_on_plateau()
    is_best, is_ending = run.state.best_step == run.state.step, stopping or run.state.finished
    is_due = evaluated if interval is None else _is_due(interval, run.state.step)
    saved = is_ending or is_best or has_decayed or is_due
    if saved:
        yield from run.save(is_best=is_best)
    yield from run.writer.wait() if is_ending else run.writer.poll()
    if is_ending and not is_last:
        yield StoppedEarly(run.state.step, patience_ran_out=run.state.finished, criterion=_criterion(run))
    elif run.clock is not None:
        run.clock.record_step(is_plain=not evaluated and not saved)
    return is_ending


def _save_interrupted(run: Run) -> None:
    """Save a run that was left between two events of a step; the rest of the step follows when it is resumed."""
    if run.state.step != run.saved_step:
        run.save(is_best=run.state.best_step == run.state.step)


def _evaluate_and_log(run: Run) -> Iterator[Evaluation | Sample | TrainingWarning]:
    """Evaluate and log the results; `run.state` says whether training is finished."""
    for event in _evaluate_or_save(run):
        if not isinstance(event, TrainingWarning):
            run.log.log_event(event)
        yield event
    is_last = run.is_complete or _is_out_of_patience(run)
    run.state = dataclasses.replace(run.state, evaluation_due=False, finished=is_last)


def _is_due(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


def _is_out_of_patience(run: Run) -> bool:
    """Whether `patience` evaluations in a row were no better than the best.

    If the learning rate decays on a plateau, only evaluations after that count.
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
    """Return what makes an evaluation the best: BLEU if it is set and there is something to translate."""
    return "loss" if run.state.best_bleu is None else run.config.training.best_by


def _train_step(run: Run) -> Step:
    """Take an optimizer step; TrainingError, before weights change, if the loss or the gradient is not finite."""
    start = time.perf_counter()
    config, state = run.config.training, run.state
    rate = run.learning_rate
    for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
        group["lr"] = rate
    seed = (config.seed * 0x9E3779B1 + state.step * 0x85EBCA77 + run.world.rank * 0xC2B2AE3D27D4EB4F + 1) % 2**63
    # `torch.manual_seed` takes 0.5 ms for devices that a CPU run doesn't use
    (torch.default_generator if run.hardware.device == "cpu" else torch).manual_seed(seed)
    fraction, next_fraction = (batch_fraction(step, config=config) for step in (state.step, state.step + 1))
    if run.prefetcher is None:
        batch = run.data.batch(state.samples, fraction=fraction)
    else:
        batch = run.prefetcher.batch(state.samples, fraction=fraction, next_fraction=next_fraction)
    tokens, learned = batch.tokens, count_learned_tokens(batch, source_loss=config.source_loss)
    with converting_compile_errors() if config.compile else nullcontext(), _converting_memory_errors(run, batch):
        total = _accumulate_gradients(run, batch)
    total, norm = run.world.all_reduce(total), run.strategy.gradient_norm()
    # clipping to a greater norm would read all gradients to scale them by 1; on a GPU comparing norms would sync
    if config.clip > 0 and (norm.is_cuda or config.clip < float(norm) < math.inf):
        run.strategy.clip_gradients(config.clip, norm)
    total_nats, total_nll, norm = stack_totals(total, norm).tolist()  # the only GPU sync of a step
    mean = total_nats / learned
    if not math.isfinite(mean) or not math.isfinite(norm):
        raise divergence_error(run, f"the loss is {mean} and the gradient's norm {norm}", step=state.step + 1)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.ema is not None:
        run.ema.update(state.step + 1)
    flops, seconds = batch_flops(run.config, batch), time.perf_counter() - start
    run.state = dataclasses.replace(
        state,
        step=state.step + 1,
        samples=state.samples + batch.rows,
        tokens=state.tokens + tokens,
        flops=state.flops + flops,
        training_seconds=state.training_seconds + seconds,
    )
    return Step(run.state.step, mean, rate, norm, tokens, flops, seconds, nll=total_nll / batch.n_targets)


@contextmanager
def _converting_memory_errors(run: Run, batch: Batch) -> Iterator[None]:
    """Convert out-of-memory errors of a batch to OutOfMemoryError."""
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
        ) from error


def _accumulate_gradients(run: Run, batch: Batch) -> Tensor:
    """Accumulate the gradients of the mean loss of a batch over micro-batches; returns (2,) sums in nats.

    The sums are over the rows of this rank.
    """
    total, config = torch.zeros(2, device=run.hardware.torch_device), run.config.training
    learned = count_learned_tokens(batch, source_loss=config.source_loss)
    for micro_batch in run.world.micro_batches(batch, rows=micro_batch_rows(run.config, batch)):
        with run.strategy.accumulate(micro_batch):
            loss, nats = run.strategy(micro_batch.batch)
            (run.strategy.scale_loss(loss, micro_batch) / learned).backward()
        if micro_batch.is_real:
            total += nats
    return total


def stack_totals(total: Tensor, norm: Tensor) -> Tensor:
    """Concatenate sums of nats and the gradient norm, which offloading leaves on the CPU, so that a GPU syncs once."""
    return torch.cat((total, norm.to(total.device)[None]))


def batch_flops(config: RunConfig, batch: Batch) -> float:
    """Return the FLOPs of training on a batch, padding included; the output layer only where a token is predicted."""
    rows, length = batch.inputs.shape
    n_targets = batch.n_targets
    if batch.source_targets is not None:
        n_targets += int((batch.source_targets != IGNORE_INDEX).sum())
    source_length = 0 if batch.source is None else batch.source.shape[1]
    return training_flops(
        config.model,
        rows=rows,
        length=length,
        source_length=source_length,
        n_targets=n_targets / rows,
        forward_passes=config.training.forward_passes,
        lora=config.lora,
    )


def _evaluate_or_save(run: Run) -> Iterator[Evaluation | Sample | TrainingWarning]:
    """Evaluate; if that fails, save the run first, unless its weights are broken."""
    try:
        yield from evaluate(run)
    except TrainingError:
        raise
    except Exception:
        if run.world.size == 1:  # saving is collective
            run.save(is_best=run.state.best_step == run.state.step)
        raise
