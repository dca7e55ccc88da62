"""Measure what a training step takes on this machine, on random tokens or on a run's own data."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from lm.config.run import RunConfig
from lm.data.batch import batch_rows
from lm.data.training_data import TrainingData
from lm.hardware import Hardware, now, timed
from lm.training import random_data
from lm.training.budget import TrainingSpeed
from lm.training.corpus import TrainingCorpus
from lm.training.evaluation import measure_cost
from lm.training.loop import batch_flops, train
from lm.training.run import Run
from lm.training.startup import start_run

Timed = Callable[[], float]
"""Does some work once; returns the seconds that counted."""

_ENDLESS = 1 << 40
_BATCHES = 4


@contextmanager
def random_run(config: RunConfig, *, rows: int) -> Iterator[Run]:
    """A run of `rows` sequences a step on random tokens (of what translates, short pairs of them), as `trial`."""
    training = dataclasses.replace(config.training, batch_size=rows, batch_tokens=None)
    config = dataclasses.replace(config, training=training)
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as name:
        data, tokenizer = Path(name) / "tokens", random_data.tokenizer_of(config.model.vocab_size)
        if config.model.translates:
            config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, bpe_dropout=0.0))
            random_data.write_pairs(data, tokenizer, pairs=_BATCHES * rows)
        else:
            length = config.model.context_length
            random_data.write_tokens(data, tokens=_BATCHES * rows * length + length, vocab_size=config.model.vocab_size)
        with trial(config, TrainingCorpus(data, tokenizer)) as run:
            yield run


@contextmanager
def trial(config: RunConfig, corpus: TrainingCorpus, *, data: TrainingData | None = None) -> Iterator[Run]:
    """A run on prepared data, planned as any other; what it writes is gone in the end.

    It never ends, evaluates nor saves.
    """
    training = dataclasses.replace(
        config.training, steps=_ENDLESS, epochs=None, tokens=None, budget=None, evaluate_every=0, checkpoint_every=0,
        patience=None,
    )  # fmt: skip
    config = dataclasses.replace(config, training=training)
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as name:
        yield start_run(Path(name) / "run", config, corpus, data=data)


def training_step(run: Run, *, passes: float = 1.0) -> Timed:
    """An optimizer step as `lm train` takes it, its batch and its journal included; see `whole_step`."""
    events = train(run)
    return whole_step(lambda: timed(lambda: next(events), run.hardware), run.optimizers, run.hardware, passes=passes)


def measure_speed(config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float) -> TrainingSpeed:
    """Measure a run on its own data (how full batches of pairs are depends on their lengths) for about so long.

    Args:
        config: of the run.
        corpus: of the run.
        data: the same, open.
        seconds: for steps; a quarter of that for evaluations.
    """
    with trial(config, corpus, data=data) as run:
        a_step = step_seconds(run, seconds=seconds)
        return TrainingSpeed(a_step, measure_cost(run, seconds=seconds / 4), run.hardware)


def rate(config: RunConfig, *, seconds: float) -> float:
    """FLOP/s of the training steps of a run on random tokens, measured in the same way."""
    with random_run(config, rows=_rows(config)) as run:
        return batch_flops(run.config, run.data.batch(0)) / step_seconds(run, seconds=seconds)


def step_seconds(run: Run, *, seconds: float) -> float:
    """Seconds that a step of this run takes, measured for about so long, after one that doesn't count."""
    step = training_step(run)
    return statistics.median(each for (each,) in alternate([step], seconds=seconds))


def _rows(config: RunConfig) -> int:
    """Random sequences, or pairs of them, that make a batch of a run."""
    tokens = config.training.batch_tokens
    if config.model.translates and tokens is not None:
        return max(1, tokens // random_data.LENGTH)
    return batch_rows(config)


def whole_step(step: Timed, optimizers: Sequence[torch.optim.Optimizer], hardware: Hardware, *, passes: float) -> Timed:
    """What an optimizer step takes that goes through the model so many times as often as the one that is timed.

    The weights are updated once all the same: with one sequence of a batch of 64 that would seem most of the work.
    """
    began, updating = 0.0, 0.0

    def begin(*_: object) -> None:
        nonlocal began
        began = now(hardware)

    def end(*_: object) -> None:
        nonlocal updating
        updating += now(hardware) - began

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(begin)
        optimizer.register_step_post_hook(end)

    def whole() -> float:
        nonlocal updating
        updating = 0.0
        return passes * (step() - updating) + updating

    return whole


def alternate(sides: Sequence[Timed], *, seconds: float) -> list[list[float]]:
    """Let sides take turns, so that whatever else the machine does meanwhile slows all of them.

    Args:
        sides: what is compared, or one alone.
        seconds: for each side, about; there is one round at least, after one that does not count.

    Returns:
        the seconds of each side, round by round.
    """
    for side in sides:
        side()
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while not rounds or time.perf_counter() - began < seconds * len(sides):
        rounds.append([side() for side in sides])
    return rounds
