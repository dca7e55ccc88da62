"""Training as a generator of events: the library yields what happened, the caller draws it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from lm.config import SamplingConfig
from lm.data.batches import Batch
from lm.decoding.generate import Token, generate, prompt_ids
from lm.decoding.sampling import Sampler
from lm.decoding.steps import DecoderSteps
from lm.errors import TrainingError
from lm.model.cost import training_flops
from lm.model.transformer import DecoderOnly
from lm.training.events import Evaluation, Event, Sample, Saved, Step, Stopped
from lm.training.journal import Journal
from lm.training.objective import summed_loss
from lm.training.run import Run, save
from lm.training.schedules import learning_rate

_SAMPLE_TOKENS = 60


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
    while run.state.step < run.plan.steps:
        step = _step(run)
        journal.step(step, epoch=run.epoch)
        yield step
        stopping, is_last = stop(), run.state.step == run.plan.steps
        is_best = out_of_patience = False
        if is_last or (_due(run.config.training.evaluate_every, run.state.step) and not stopping):
            for event in _evaluation(run):
                journal.note(event)
                yield event
                is_best = is_best or (isinstance(event, Evaluation) and event.is_best)
            out_of_patience = _out_of_patience(run)
        ends = is_last or stopping or out_of_patience
        run.state = dataclasses.replace(run.state, finished=is_last or out_of_patience)
        if ends or is_best or _checkpoint_due(run):
            yield Saved(run.state.step, save(run, is_best=is_best))
        if ends and not is_last:
            yield Stopped(run.state.step, patience_ran_out=out_of_patience)
            return


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
    rate = learning_rate(state.step, config=config, steps=run.plan.steps)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    torch.manual_seed(_fold(config.seed, state.step))
    batch = run.data.batch(state.samples)
    tokens = batch.predicted
    mean = _accumulate(run, batch) / tokens
    norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), config.clip or math.inf))
    if not math.isfinite(mean) or not math.isfinite(norm):
        raise TrainingError(
            f"{run.folder}: the loss is {mean} and the gradient's norm {norm} at step {state.step + 1}; "
            "saved checkpoints are untouched: try a lower --learning-rate or --dtype float32"
        )
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    flops, seconds = _flops(run, batch), time.perf_counter() - began
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
    smoothing = run.config.training.label_smoothing
    for part in batch.split(run.config.training.micro_batch_size):
        nats = summed_loss(run.compiled, part, run.hardware, label_smoothing=smoothing)
        (nats / predicted).backward()
        total += nats.detach()
    return float(total)


def _flops(run: Run, batch: Batch) -> float:
    rows, length = batch.inputs.shape
    source_length = 0 if batch.source is None else batch.source.shape[1]
    return training_flops(run.config.model, rows=rows, length=length, source_length=source_length)


def evaluate(run: Run) -> tuple[float, int]:
    """Summed nats and number of predictions over the whole validation split."""
    nats, predicted = 0.0, 0
    run.model.eval()
    with torch.inference_mode():
        for batch in run.data.validation():
            nats += float(summed_loss(run.model, batch, run.hardware))
            predicted += batch.predicted
    run.model.train()
    return nats, predicted


def _evaluation(run: Run) -> Iterator[Evaluation | Sample]:
    """Evaluate, and continue the sample prompts; if that fails, what was trained is saved first."""
    try:
        if run.data.validation_bytes:
            yield _evaluate_and_note(run)
        for prompt in run.config.training.sample:
            yield Sample(run.state.step, prompt, _continue(run, prompt))
    except Exception:
        save(run, is_best=False)
        raise


def _evaluate_and_note(run: Run) -> Evaluation:
    began = time.perf_counter()
    nats, predicted = evaluate(run)
    loss, state = nats / predicted, run.state
    is_best = state.best_loss is None or loss < state.best_loss
    if is_best:
        run.state = dataclasses.replace(state, best_loss=loss, best_step=state.step)
    bits_per_byte = nats / math.log(2) / run.data.validation_bytes
    return Evaluation(state.step, loss, bits_per_byte, predicted, time.perf_counter() - began, is_best)


def _continue(run: Run, prompt: str) -> str:
    """A continuation of a prompt, drawn the same way each time."""
    sampler = Sampler.of(SamplingConfig(seed=run.config.training.seed))
    end = run.tokenizer.end_of_text
    assert isinstance(run.model, DecoderOnly)
    run.model.eval()
    events = generate(
        DecoderSteps(run.model),
        prompt_ids(run.tokenizer, prompt),
        sampler,
        max_tokens=_SAMPLE_TOKENS,
        stop_ids=() if end is None else (end,),
    )
    tokens = [event.id for event in events if isinstance(event, Token)]
    run.model.train()
    return run.tokenizer.decode(tokens)


def _fold(seed: int, step: int) -> int:
    """One seed for each step of a run; neighbouring seeds share no step's."""
    return (seed * 0x9E3779B1 + step * 0x85EBCA77 + 1) % 2**63
