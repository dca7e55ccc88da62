"""Measure training on this machine: model and optimizer are built and stepped, without a run's folder."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lm.config.run_config import RunConfig, RunPlan
from lm.corpus.encode import Tokenizers
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch, batch_rows
from lm.data.pairs import select_layout
from lm.data.training_data import TrainingData
from lm.hardware import time_work
from lm.model.cost import total_parameters
from lm.training.evaluation import measure_cost
from lm.training.planning.budget import UNLIMITED_STEPS, EvaluationCost, TrainingSpeed
from lm.training.planning.hardware_selection import select_training_hardware
from lm.training.planning.memory import estimate_micro_batch_tokens
from lm.training.run import Run, batch_flops

Timer = Callable[[], float]
"""Does some work once; returns the seconds it took."""

SENTENCE_LENGTH = 16
"""Tokens per side, including the end token: a short sentence."""
_N_BATCHES = 4
_MOST_PARAMETERS, _MOST_FLOPS = 3e7, 3e11
"""Of a model and its step that are measured where an estimate would do: half a gigabyte, and seconds on one core."""


class RandomData(TrainingData):
    """Random tokens, or short random sentence pairs for translation models."""

    samples, tokens, steps_per_epoch, validation_bytes = 1, 1, 1.0, 0

    def __init__(self, config: RunConfig, rows: int) -> None:
        """Draw a few batches of some rows."""
        model, self._rows = config.model, rows
        rng = np.random.default_rng(0)

        def draw() -> Batch:
            if not model.translates:
                ids = rng.integers(model.vocab_size, size=(rows, model.context_length + 1))
                return Batch(ids[:, :-1], ids[:, 1:])
            sizes = (model.source_vocab_size or model.vocab_size, model.vocab_size)
            sides = [RaggedArray.from_rows([*rng.integers(size, size=(rows, SENTENCE_LENGTH))]) for size in sizes]
            return select_layout(model).batch(*sides, start=0)

        self._batches = [draw() for _ in range(_N_BATCHES)]

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:  # noqa: ARG002
        return self._batches[consumed // self._rows % _N_BATCHES]

    def validation(self) -> Iterator[Batch]:
        yield from ()


def trial_run(config: RunConfig, data: TrainingData, tokenizers: Tokenizers | None = None) -> Run:
    """Return a run without a folder, to be stepped; its hardware is selected."""
    training = config.training
    hardware = select_training_hardware(config, next(data.batch(0).split(training.micro_batch_size)))
    fitting = estimate_micro_batch_tokens(config, hardware) if training.micro_batch_size is None else None
    plan = RunPlan(**vars(hardware), steps=UNLIMITED_STEPS, data="", data_key="", micro_batch_tokens=fitting)
    return Run(dataclasses.replace(config, plan=plan), data, tokenizers)


def random_run(config: RunConfig, *, rows: int) -> Run:
    """Return a `trial_run` on batches of `rows` random sequences."""
    return trial_run(config, RandomData(config, rows))


class SpeedMeter:
    """Measures training speed for budgets. Tests pass a subclass with fixed results."""

    def measure_flop_rate(self, config: RunConfig, *, seconds: float) -> float:
        """Return the FLOP/s of training steps on random tokens, measured for about `seconds`."""
        tokens = config.training.batch_tokens
        is_pairs = config.model.translates and tokens is not None
        run = random_run(config, rows=max(1, (tokens or 0) // SENTENCE_LENGTH) if is_pairs else batch_rows(config))
        return batch_flops(run.config, run.data.batch(0)) / measure_step_seconds(run, seconds=seconds)

    def measure_training_speed(
        self, config: RunConfig, data: TrainingData, tokenizers: Tokenizers, *, seconds: float
    ) -> TrainingSpeed:
        """Measure steps on a run's own data, because the padding of pair batches depends on their lengths.

        Args:
            seconds: for steps; a quarter of that is for evaluations.
        """
        run = trial_run(config, data, tokenizers)
        step_seconds = measure_step_seconds(run, seconds=seconds)
        return TrainingSpeed(step_seconds, measure_cost(run, seconds=seconds / 4), run.hardware)


class SpeedEstimator(SpeedMeter):
    """Estimates training speed without building a large model, for plans that are only shown."""

    def __init__(self, probe: RunConfig) -> None:
        """Create the estimator; `probe` is a small model, whose FLOP/s are measured."""
        self._probe = probe

    def measure_training_speed(
        self, config: RunConfig, data: TrainingData, tokenizers: Tokenizers, *, seconds: float
    ) -> TrainingSpeed:
        """Measure a small model; of a large one the time is estimated from FLOPs."""
        batch = data.batch(0)
        flops = batch_flops(config, batch)
        if total_parameters(config.model) <= _MOST_PARAMETERS and flops <= _MOST_FLOPS:
            return super().measure_training_speed(config, data, tokenizers, seconds=seconds)
        step_seconds = flops / self.measure_flop_rate(self._probe, seconds=seconds)
        targets = sum(held_out.n_targets for held_out in data.validation())
        cost = EvaluationCost(step_seconds / 3 * targets / batch.n_targets, 0.0)  # a forward pass
        return TrainingSpeed(step_seconds, cost, select_training_hardware(config, batch.truncate(rows=1, length=64)))


def measure_step_seconds(run: Run, *, seconds: float) -> float:
    """Return the median step time in seconds, excluding one warm-up step."""
    step = training_step_timer(run)
    return statistics.median(measured for (measured,) in time_interleaved([step], seconds=seconds))


def training_step_timer(run: Run) -> Timer:
    """Return a timer of optimizer steps, including data loading."""
    return lambda: time_work(run.step, run.hardware)


def time_interleaved(timers: Sequence[Timer], *, seconds: float) -> list[list[float]]:
    """Time functions in interleaved rounds, so that other load slows all of them.

    Args:
        timers: what is compared, or one alone.
        seconds: per side, approximately; at least one round follows a warm-up.

    Returns:
        The seconds of each side, round by round.
    """
    for side in timers:
        side()
    rounds: list[list[float]] = []
    start = time.perf_counter()
    while not rounds or time.perf_counter() - start < seconds * len(timers):
        rounds.append([side() for side in timers])
    return rounds
