"""Measure training on this machine: model and optimizer are built and stepped, without a run's folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from lm.config.run_config import RunConfig, RunPlan
from lm.corpus import RaggedArray
from lm.corpus.encode import Tokenizers
from lm.data import Batch, TrainingData, batch_rows
from lm.data.pairs import PairLayout
from lm.hardware import Timer, time_interleaved, time_work
from lm.training.evaluation import measure_cost
from lm.training.objective import select_training_hardware
from lm.training.rules import UNLIMITED_STEPS, TrainingSpeed
from lm.training.run import Run, batch_flops

SENTENCE_LENGTH = 16
"""Tokens per side, including the end token: a short sentence."""
_N_BATCHES = 4


class RandomData(TrainingData):
    """A few batches of random tokens, or of short random sentence pairs for translation models."""

    samples, tokens, steps_per_epoch, validation_bytes = 1, 1, 1.0, 0

    def __init__(self, config: RunConfig, rows: int) -> None:
        model, rng = config.model, np.random.default_rng(0)

        def draw() -> Batch:
            if not model.translates:
                ids = rng.integers(model.vocab_size, size=(rows, model.context_length + 1))
                return Batch(ids[:, :-1], ids[:, 1:])
            sizes = (model.source_vocab_size or model.vocab_size, model.vocab_size)
            sides = [RaggedArray.from_rows([*rng.integers(size, size=(rows, SENTENCE_LENGTH))]) for size in sizes]
            return PairLayout(model.decoder_only).batch(*sides, start=0)

        self._batches = [draw() for _ in range(_N_BATCHES)]

    def batch(self, consumed: int) -> Batch:
        return self._batches[consumed // self._batches[0].rows % _N_BATCHES]

    def validation(self) -> Iterator[Batch]:
        yield from ()


def trial_run(config: RunConfig, data: TrainingData, tokenizers: Tokenizers | None = None) -> Run:
    """Return a run without a folder, to be stepped; its hardware is selected."""
    hardware = select_training_hardware(config, next(data.batch(0).split(config.training.micro_batch_size)))
    plan = RunPlan(**vars(hardware), steps=UNLIMITED_STEPS, data="", data_key="")
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
        return batch_flops(run.config, run.data.batch(0)) / _measure_step_seconds(run, seconds=seconds)

    def measure_training_speed(
        self, config: RunConfig, data: TrainingData, tokenizers: Tokenizers, *, seconds: float
    ) -> TrainingSpeed:
        """Measure steps on a run's own data, because the padding of pair batches depends on their lengths.

        Args:
            seconds: for steps; a quarter of that is for evaluations.
        """
        run = trial_run(config, data, tokenizers)
        step = _measure_step_seconds(run, seconds=seconds)
        return TrainingSpeed(step, *measure_cost(run, seconds=seconds / 4), run.hardware)


def _measure_step_seconds(run: Run, *, seconds: float) -> float:
    """Return the median step time in seconds, excluding one warm-up step."""
    return float(np.median(time_interleaved([training_step_timer(run)], seconds=seconds)))


def training_step_timer(run: Run) -> Timer:
    """Return a timer of optimizer steps, including data loading."""
    return lambda: time_work(run.step, run.hardware)
