"""The training step of `lm train`, on random tokens or on prepared data."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from lm import files
from lm.benchmark import random_pairs
from lm.benchmark.timing import Timed, alternate, whole_step
from lm.budget.pace import Pace
from lm.config.run import RunConfig
from lm.config.tokenizer import END_OF_TEXT, TokenizerConfig
from lm.corpus.manifest import MANIFEST, SPLITS, Manifest, SplitRecord
from lm.corpus.shards import ShardWriter, token_dtype
from lm.data.batch import batch_rows
from lm.data.training_data import TrainingData
from lm.hardware import Hardware, timed
from lm.model.cost import training_flops
from lm.tokenizer import training as tokenizer_training
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.corpus import TrainingCorpus
from lm.training.evaluation import cost
from lm.training.run import Run
from lm.training.starting import start
from lm.training.trainer import batch_flops, train

_ENDLESS = 1 << 40
_BATCHES = 4
_SHARE_OF_A_STEP = 1 / 4
_LIKELY_UTILISATION = 0.3
_MOST_POSITIONS = 1 << 15  # whose activations fit into the memory of most machines
_FIRST_CHARACTER = 0x10000  # of as many as any vocabulary needs


def fitting_rows(config: RunConfig, *, rate: float, seconds: float) -> int:
    """Sequences of a step that takes a small part of some time: the preset's batch, or fewer.

    Args:
        config: of the run.
        rate: FLOP/s of matrix products.
        seconds: for several steps.
    """
    batch, length = config.training.batch_size, config.model.context_length
    likely = _LIKELY_UTILISATION * rate * _SHARE_OF_A_STEP * seconds
    most = int(min(likely / training_flops(config.model, rows=1, length=length), _MOST_POSITIONS / length))
    steady = 1 << most.bit_length() >> 1  # a power of two, which changes less from time to time
    return batch if most >= batch else max(1, steady)


@contextmanager
def random_run(config: RunConfig, *, rows: int) -> Iterator[Run]:
    """A run of `rows` sequences a step on random tokens (of what translates, short pairs of them), as `trial`."""
    training = dataclasses.replace(config.training, batch_size=rows, batch_tokens=None)
    config = dataclasses.replace(config, training=training)
    with tempfile.TemporaryDirectory(prefix="lm-bench-") as name:
        data, tokenizer = Path(name) / "tokens", _tokenizer(config.model.vocab_size)
        if config.model.translates:
            config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, bpe_dropout=0.0))
            random_pairs.write_pairs(data, tokenizer, pairs=_BATCHES * rows)
        else:
            length = config.model.context_length
            _write_tokens(data, tokens=_BATCHES * rows * length + length, vocab_size=config.model.vocab_size)
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
        yield start(Path(name) / "run", config, corpus, data=data)


def training_step(run: Run, *, passes: float = 1.0) -> Timed:
    """An optimizer step as `lm train` takes it, its batch and its journal included; see `whole_step`."""
    events = train(run)
    return whole_step(lambda: timed(lambda: next(events), run.hardware), run.optimizers, run.hardware, passes=passes)


def pace(config: RunConfig, corpus: TrainingCorpus, data: TrainingData, *, seconds: float) -> Pace:
    """Measure a run on its own data (how full batches of pairs are depends on their lengths) for about so long.

    Args:
        config: of the run.
        corpus: of the run.
        data: the same, open.
        seconds: for steps; a quarter of that for evaluations.
    """
    with trial(config, corpus, data=data) as run:
        a_step = step_seconds(run, seconds=seconds)
        return Pace(a_step, cost(run, seconds=seconds / 4), run.hardware)


def rate(config: RunConfig, *, seconds: float) -> float:
    """FLOP/s of the training steps of a run on random tokens, measured in the same way."""
    with random_run(config, rows=_rows(config)) as run:
        return batch_flops(run, run.data.batch(0)) / step_seconds(run, seconds=seconds)


def step_seconds(run: Run, *, seconds: float) -> float:
    """Seconds that a step of this run takes, measured for about so long, after one that doesn't count."""
    step = training_step(run)
    return statistics.median(each for (each,) in alternate([step], seconds=seconds))


def _rows(config: RunConfig) -> int:
    """Random sequences, or pairs of them, that make a batch of a run."""
    tokens = config.training.batch_tokens
    if config.model.translates and tokens is not None:
        return max(1, tokens // random_pairs.LENGTH)
    return batch_rows(config)


def peak_of(step: Timed, hardware: Hardware) -> int | None:
    """The most bytes of a GPU's memory in a step; None elsewhere, where a process's peak is of all it did so far."""
    if hardware.device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def _tokenizer(vocab_size: int) -> Tokenizer:
    """One that has so many tokens, that which ends a text among them; nothing is ever encoded."""
    characters = "".join(map(chr, range(_FIRST_CHARACTER, _FIRST_CHARACTER + vocab_size - 1)))
    config, size = TokenizerConfig(kind="char"), 4 * vocab_size
    return tokenizer_training.train([characters], config, corpus_bytes=size, special_tokens=[END_OF_TEXT]).tokenizer


def _write_tokens(folder: Path, *, tokens: int, vocab_size: int) -> None:
    """Random ids as `lm.corpus.shards` has them."""
    folder.mkdir()
    dtype = token_dtype(vocab_size)
    ids = np.random.default_rng(0).integers(vocab_size, size=tokens).astype(dtype)
    splits: dict[str, SplitRecord] = {}
    for split in SPLITS:
        writer = ShardWriter(folder, split, dtype=dtype)
        writer.append(ids)
        writer.close()
        splits[split] = SplitRecord(documents=1, tokens=tokens, bytes=tokens, shards=tuple(writer.shards))
    manifest = Manifest(
        kind="text", key="", tokenizer="", vocab_size=vocab_size, dtype=dtype, separator="", validation="", sources=(),
        validation_sources=(), splits=splits,
    )  # fmt: skip
    files.write_json(folder / MANIFEST, manifest.to_dict())
