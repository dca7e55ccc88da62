"""A new run: planned, built, and given a folder of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from lm import checkpoint, run_folder
from lm.base import adapting, refer
from lm.budget.pace import Pace
from lm.config.run import RunConfig
from lm.data.kinds import open_data
from lm.data.labels import labels_of
from lm.data.training_data import TrainingData
from lm.distributed.world import ALONE, World
from lm.run_folder import TrainingState
from lm.training.corpus import TrainingCorpus
from lm.training.evaluation import check_samples
from lm.training.initial_weights import check_tokenizers
from lm.training.journal import Journal
from lm.training.lock import claimed
from lm.training.opening import Opening
from lm.training.planning import planned
from lm.training.run import Run


def start(
    folder: Path,
    config: RunConfig,
    corpus: TrainingCorpus,
    *,
    data: TrainingData | None = None,
    weights: Mapping[str, Tensor] | None = None,
    base: Path | None = None,
    pace: Pace | None = None,
    spent: float = 0.0,
    world: World = ALONE,
) -> Run:
    """A new run in a folder of its own, its plan written down.

    Args:
        folder: to be made; InputError if it holds a run already or another process is about to make one there.
        config: what to train; the vocabulary sizes are taken from the tokenizers, labels from the examples.
        corpus: what to learn from.
        data: the same, if it is open already.
        weights: to start from, instead of random ones; UsageError if they don't fit the model.
        base: the checkpoint that they are of, where the run has adapters to them.
        pace: how fast the run goes, where that was measured, as a budget wants it.
        spent: seconds of a budget that are gone already.
        world: the processes that train the run; in the others, `follow` builds it at the same time.
    """
    run_folder.refuse_existing(folder)
    config = fitted(config, corpus)
    data = data or open_data(corpus.folder, config)
    config = planned(config, corpus.folder, data, pace=pace, spent=spent, processes=world.size)
    if base is not None:
        check_tokenizers(base, corpus.tokenizer, corpus.source_tokenizer)
        config = adapting(config, base)
    pause = 0.0 if pace is None else pace.pause
    opening = Opening(folder, config, TrainingState(), corpus, spent, pause, has_weights=weights is not None)
    run = world.told(opening).built(world, data=data, weights=weights)
    check_samples(run)
    _make_folder(run, base)
    return run


def fitted(config: RunConfig, corpus: TrainingCorpus) -> RunConfig:
    """The settings of a model that has an embedding for each token and, of a classifier, an output for each label.

    Sources whose tokens are those of the targets, cut otherwise, share their embedding. Without merges there is no BPE
    dropout, which presets and budgets choose before the tokenizers are known.
    """
    source = corpus.source_tokenizer
    source_size = None if source is None or source.shares_ids(corpus.tokenizer) else source.vocab_size
    sized = dataclasses.replace(
        config.model,
        vocab_size=corpus.vocab_size,
        source_vocab_size=source_size,
        labels=labels_of(corpus.folder) if config.model.is_masked and config.data.supervised else (),
    )
    parallel = config.parallel
    if parallel.bpe_dropout and not corpus.has_merges:
        parallel = dataclasses.replace(parallel, bpe_dropout=0.0)
    return dataclasses.replace(config, model=sized, parallel=parallel)


def _make_folder(run: Run, base: Path | None) -> None:
    """Make the run's folder and write its plan down, and where its base is; the run's lock is held from here on."""
    with claimed(run.lock):
        run_folder.refuse_existing(run.folder)  # again: another process may have been faster
        checkpoint.remove_leftovers(run.folder)
        (run.folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        if base is not None:
            refer(run.folder, base)
        run.write_config()
        Journal(run.folder).settle()
        Journal(run.folder).forget_after(0)
