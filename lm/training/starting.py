"""A new run: planned, built, and given a folder of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from lm import checkpoint, run_folder
from lm.config.run import RunConfig
from lm.data.kind import TrainingData
from lm.data.training_data import open_data
from lm.hardware import Hardware
from lm.run_folder import TrainingState
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.initial_weights import start_from
from lm.training.journal import Journal
from lm.training.lock import claimed
from lm.training.planning import planned
from lm.training.run import Run


def start(
    folder: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    data: Path,
    *,
    opened: TrainingData | None = None,
    source_tokenizer: Tokenizer | None = None,
    weights: Mapping[str, Tensor] | None = None,
    spent: float = 0.0,
    pace: float = 1.0,
    pause: float = 0.0,
    hardware: Hardware | None = None,
) -> Run:
    """A new run in a folder of its own, its plan written down.

    Args:
        folder: to be made; InputError if it holds a run already or another process is about to make one there.
        config: what to train; the vocabulary size is taken from the tokenizer.
        tokenizer: that made the data; of the targets, where sources have their own.
        data: folder of the prepared data.
        opened: the same, if they are open already.
        source_tokenizer: of the sources of an encoder-decoder, if they have their own.
        weights: to start from, instead of random ones; UsageError if they don't fit the model.
        spent: seconds of a budget that are gone already.
        pace: seconds that a step takes, about; for a budget.
        pause: seconds that it takes to evaluate and save, about; for a budget.
        hardware: what to train on, where that was measured already.
    """
    run_folder.refuse_existing(folder)
    config = _with_vocabularies(config, tokenizer, source_tokenizer)
    opened = opened or open_data(data, config)
    run = Run(
        folder,
        planned(config, data, opened, hardware=hardware, pace=pace, spent=spent),
        TrainingState(),
        data=opened,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        spent=spent,
        pause=pause,
    )
    if weights is not None:
        start_from(run, weights)
    _make_folder(run)
    return run


def _with_vocabularies(config: RunConfig, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None) -> RunConfig:
    """The settings of a model that has an embedding for each token."""
    source_size = None if source_tokenizer is None else source_tokenizer.vocab_size
    sized = dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size, source_vocab_size=source_size)
    return dataclasses.replace(config, model=sized)


def _make_folder(run: Run) -> None:
    """Make the run's folder and write its plan down; the run's lock is held from here on."""
    with claimed(run.lock):
        run_folder.refuse_existing(run.folder)  # again: another process may have been faster
        checkpoint.remove_leftovers(run.folder)
        (run.folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        run.write_config()
        Journal(run.folder).settle()
        Journal(run.folder).forget_after(0)
