"""Timing of training steps on this machine, on random tokens and sentence pairs or a run's own data."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from lm.config.data import DataKind
from lm.config.run_config import RunConfig
from lm.config.tokenizer import END_OF_TEXT, TokenizerConfig
from lm.corpus.store import SPLITS, Manifest, SplitRecord, token_dtype, write_chunk, write_store
from lm.data.batch import batch_rows
from lm.data.training_data import TrainingData
from lm.hardware import Hardware, synchronized_time, time_work
from lm.model.cost import total_parameters
from lm.tokenizer import training as tokenizer_training
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.evaluation import measure_cost
from lm.training.loop import batch_flops, train
from lm.training.planning.budget import UNLIMITED_STEPS, EvaluationCost, TrainingSpeed
from lm.training.run import Run
from lm.training.startup import start_run
from lm.training.training_corpus import TrainingCorpus

Timer = Callable[[], float]
"""Does some work once; returns the seconds it took."""

_N_BATCHES = 4
_MOST_PARAMETERS, _MOST_FLOPS = 3e7, 3e11
"""Of a model and its step that are measured where an estimate would do: half a gigabyte, and seconds on one core."""
_ESTIMATE_LAYERS, _ESTIMATE_TOKENS = 2, 2048


@contextmanager
def random_data_run(config: RunConfig, *, rows: int) -> Iterator[Run]:
    """Yield a `trial_run` with batches of `rows` random sequences, or short random pairs for translation models."""
    training = dataclasses.replace(config.training, batch_size=rows, batch_tokens=None)
    config = dataclasses.replace(config, training=training)
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as name:
        data, tokenizer = Path(name) / "tokens", placeholder_tokenizer(config.model.vocab_size)
        if config.model.translates:
            config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, bpe_dropout=0.0))
            write_random_pairs(data, tokenizer, pairs=_N_BATCHES * rows)
        else:
            length = config.model.context_length
            write_random_tokens(data, tokens=_N_BATCHES * rows * length + length, vocab_size=config.model.vocab_size)
        with trial_run(config, TrainingCorpus(data, tokenizer)) as run:
            yield run


@contextmanager
def trial_run(config: RunConfig, corpus: TrainingCorpus, *, data: TrainingData | None = None) -> Iterator[Run]:
    """Yield a run on prepared data in a temporary folder, which never ends, evaluates or saves."""
    training = dataclasses.replace(
        config.training, steps=UNLIMITED_STEPS, epochs=None, tokens=None, budget=None, evaluate_every=0,
        checkpoint_every=0, patience=None,
    )  # fmt: skip
    config = dataclasses.replace(config, training=training)
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as name:
        yield start_run(Path(name) / "run", config, corpus, data=data)


def training_step_timer(run: Run, *, batch_scale: float = 1.0) -> Timer:
    """Return a timer of optimizer steps, including data loading and logging; see `scaled_step_timer`."""
    events = train(run)
    return scaled_step_timer(
        lambda: time_work(lambda: next(events), run.hardware), run.optimizers, run.hardware, batch_scale=batch_scale
    )


def measure_training_speed(
    config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float
) -> TrainingSpeed:
    """Measure a run on its own data, because the padding of pair batches depends on their lengths.

    Args:
        seconds: for steps; a quarter of that is for evaluations.
    """
    with trial_run(config, corpus, data=data) as run:
        seconds_per_step = measure_step_seconds(run, seconds=seconds)
        return TrainingSpeed(seconds_per_step, measure_cost(run, seconds=seconds / 4), run.hardware)


def estimate_speed(config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float) -> TrainingSpeed:
    """Estimate the speed of a run without building a large model; see `measure_training_speed` for the arguments.

    A small model is measured. Of a large one, two layers are measured on small batches, and scaled by FLOPs.
    """
    model, training = config.model, config.training
    batch = data.batch(0)
    flops = batch_flops(config, batch)
    if total_parameters(model) <= _MOST_PARAMETERS and flops <= _MOST_FLOPS:
        return measure_training_speed(config, corpus, data, seconds=seconds)
    layers = {name: min(_ESTIMATE_LAYERS, getattr(model, name)) for name in ("n_layers", "n_encoder_layers")}
    tokens = max(_ESTIMATE_TOKENS, model.context_length)
    rows = max(1, tokens // model.context_length)
    small_batch = dataclasses.replace(
        training,
        batch_tokens=training.batch_tokens and min(training.batch_tokens, tokens),
        batch_size=training.batch_size and min(training.batch_size, rows),
    )
    shallow = dataclasses.replace(config, model=dataclasses.replace(model, **layers))
    small = dataclasses.replace(shallow, training=small_batch)
    with trial_run(small, corpus) as run:
        shallow_flops = batch_flops(shallow, batch)
        batch_scale, depth = shallow_flops / batch_flops(run.config, run.data.batch(0)), flops / shallow_flops
        seconds_per_step = depth * measure_step_seconds(run, seconds=seconds, batch_scale=batch_scale)
        cost = measure_cost(run, seconds=seconds / 4)
    cost = EvaluationCost(depth * cost.loss_seconds, depth * cost.sentence_seconds)
    return TrainingSpeed(seconds_per_step, cost, run.hardware)


def measure_flop_rate(config: RunConfig, *, seconds: float) -> float:
    """Return the FLOP/s of training steps on random tokens."""
    with random_data_run(config, rows=_batch_rows(config)) as run:
        return batch_flops(run.config, run.data.batch(0)) / measure_step_seconds(run, seconds=seconds)


def measure_step_seconds(run: Run, *, seconds: float, batch_scale: float = 1.0) -> float:
    """Return the median step time in seconds, excluding one warm-up step; see `scaled_step_timer` for `batch_scale`."""
    step = training_step_timer(run, batch_scale=batch_scale)
    return statistics.median(measured for (measured,) in time_interleaved([step], seconds=seconds))


def _batch_rows(config: RunConfig) -> int:
    """Return the number of random sequences or pairs in a batch."""
    tokens = config.training.batch_tokens
    if config.model.translates and tokens is not None:
        return max(1, tokens // SENTENCE_LENGTH)
    return batch_rows(config)


def scaled_step_timer(
    step: Timer, optimizers: Sequence[torch.optim.Optimizer], hardware: Hardware, *, batch_scale: float
) -> Timer:
    """Return a timer of an optimizer step with `batch_scale` times the forward and backward passes of `step`.

    The optimizer update is counted once: with one sequence of a batch of 64 it would dominate otherwise.
    """
    start, updating = 0.0, 0.0

    def begin(*_: object) -> None:
        nonlocal start
        start = synchronized_time(hardware)

    def end(*_: object) -> None:
        nonlocal updating
        updating += synchronized_time(hardware) - start

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(begin)
        optimizer.register_step_post_hook(end)

    def whole() -> float:
        nonlocal updating
        updating = 0.0
        return batch_scale * (step() - updating) + updating

    return whole


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


SENTENCE_LENGTH = 16
"""Tokens per side, including the end token: a short sentence."""
_FIRST_CHARACTER = 0x10000  # followed by enough code points for any vocabulary


def write_random_pairs(folder: Path, tokenizer: Tokenizer, *, pairs: int) -> None:
    """Write a store of random sentence pairs, each token a word of its own."""
    rng, tokens = np.random.default_rng(0), pairs * (SENTENCE_LENGTH - 1)
    ends = np.arange(1, pairs + 1) * (SENTENCE_LENGTH - 1)
    columns = {"ends": ends, "source_ends": ends}
    for name, words in (("source", "source_words"), ("tokens", "words")):
        columns[name] = rng.integers(tokenizer.vocab_size, size=tokens).astype(token_dtype(tokenizer.vocab_size))
        columns[words] = np.ones(tokens, dtype=bool)
    record = SplitRecord(pairs, tokens, tokens, tokens, tokens, longest=SENTENCE_LENGTH - 1)
    _write_random(folder, "pairs", columns, record, tokenizer.vocab_size, tokenizer)


def placeholder_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer with `vocab_size` tokens, including end of text; it is not used to encode."""
    characters = "".join(map(chr, range(_FIRST_CHARACTER, _FIRST_CHARACTER + vocab_size - 1)))
    config, size = TokenizerConfig(kind="char"), 4 * vocab_size
    return tokenizer_training.train([characters], config, corpus_bytes=size, special_tokens=[END_OF_TEXT]).tokenizer


def write_random_tokens(folder: Path, *, tokens: int, vocab_size: int) -> None:
    """Write a store of random tokens."""
    ids = np.random.default_rng(0).integers(vocab_size, size=tokens).astype(token_dtype(vocab_size))
    _write_random(folder, "text", {"tokens": ids}, SplitRecord(1, tokens, tokens), vocab_size)


def _write_random(
    folder: Path,
    kind: DataKind,
    columns: dict[str, np.ndarray],
    record: SplitRecord,
    vocab_size: int,
    *tokenizers: Tokenizer,
) -> None:
    """Write a store in which both splits hold the same."""
    folder.mkdir()
    named = {f"{split}-{name}": values for split in SPLITS for name, values in columns.items()}
    chunk = write_chunk(folder / "chunk", named, dict.fromkeys(SPLITS, record))
    manifest = Manifest(kind=kind, key="", tokenizer="", vocab_size=vocab_size, chunks=(chunk,))
    write_store(folder, manifest, *tokenizers)
