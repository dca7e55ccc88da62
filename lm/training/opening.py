"""What all processes of a run must know before they build it, which the first has found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lm.config.run import RunConfig
from lm.data.kinds import open_data
from lm.data.training_data import TrainingData
from lm.distributed.world import World
from lm.errors import InputError
from lm.locks import LockFile
from lm.model.lora import load_frozen
from lm.run_folder import TrainingState
from lm.training.corpus import TrainingCorpus
from lm.training.initial_weights import start_from
from lm.training.run import Run
from lm.training.saving import restore

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Opening:
    """A run that is about to be built.

    Attributes:
        folder: of the run.
        config: with a plan.
        state: how far the run has come.
        corpus: what it learns from.
        spent: seconds of a budget that are gone, besides those that `state` knows of.
        pause: seconds that it takes to evaluate and save, about; for a budget.
        has_weights: whether it starts from those of another run.
        checkpoint: of its own, that it goes on from.
    """

    folder: Path
    config: RunConfig
    state: TrainingState
    corpus: TrainingCorpus
    spent: float
    pause: float = 0.0
    has_weights: bool = False
    checkpoint: Path | None = None

    def built(
        self,
        world: World,
        *,
        data: TrainingData | None = None,
        lock: LockFile | None = None,
        weights: Named | None = None,
        optimizer: Named | None = None,
        base: Named | None = None,
    ) -> Run:
        """The run, in the first process and in those that follow it, which need no more than the opening.

        Args:
            world: all processes of the run, which build it at the same time.
            data: that the run learns from, if they are open.
            lock: of the run, if it is held already.
            weights: to start from.
            optimizer: the state of the optimizers, of a checkpoint.
            base: what the adapters of a checkpoint belong to, if it has some.

        Raises:
            UsageError: weights of another run don't fit.
            InputError: those of a checkpoint don't.
        """
        data = data or open_data(self.corpus.folder, self.config)
        run = Run(self.folder, self.config, self.state, corpus=self.corpus, data=data, lock=lock, spent=self.spent,
                  pause=self.pause, world=world)  # fmt: skip
        if self.has_weights:
            start_from(run, world.told_tensors(weights))
        if self.checkpoint is not None:
            frozen = world.told_tensors(base) if self.config.lora else {}
            _restore(run, self.checkpoint, world.told_tensors(weights), world.told_tensors(optimizer), frozen=frozen)
        return run


def _restore(run: Run, checkpoint: Path, weights: Named, optimizer: Named, *, frozen: Named) -> None:
    """Put the weights and the state of the optimizers back that a checkpoint has, and those that stay as they are."""
    try:
        if frozen:
            load_frozen(run.model, frozen)
        restore(run, weights, optimizer)
    except torch.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError):
        wrong = "its weights are not of this run's model; go on from another checkpoint"
        raise InputError(f"{checkpoint}: {wrong}") from None


def follow(world: World) -> Run:
    """The run that the first process starts or resumes, in one that follows it."""
    opening: Opening = world.told(None)
    return opening.built(world)
