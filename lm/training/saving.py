"""What of a run goes to the disk, and comes back: its weights, and the state of its optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from lm import checkpoint, run_folder
from lm.model.lora import load_trained, trained_weights
from lm.optimization.optimizers import optimizer_tensors, restore_optimizers
from lm.training.journal import Journal
from lm.training.run import Run, diverged

_TRAINED = "trained."
"""In the optimizer's file, before the names of the weights that are trained while their average is the model."""


def save(run: Run, *, is_best: bool) -> Path:
    """Write a checkpoint of the run as it is, and remove those that are not to be kept; returns its folder.

    Of several processes, all take part, and one writes.

    Raises:
        InputError: it cannot be written.
        TrainingError: a weight is no longer finite, which the loss of the next step would show too late.
    """
    weights, optimizer = _tensors(run)
    run.note_elapsed()
    if not run.world.writes:
        return run_folder.checkpoint_folder(run.folder, run.state.step)
    folder = checkpoint.save_checkpoint(
        run.folder,
        config=run.config,
        tokenizer=run.tokenizer,
        source_tokenizer=run.source_tokenizer,
        model=weights,
        optimizer=optimizer,
        state=run.state,
        is_best=is_best,
    )
    if run.other_branch:
        Journal(run.folder).settle()
        checkpoint.leave(run.folder, run.other_branch, best_step=run.state.best_step)
        run.other_branch = []
    checkpoint.remove_old(run.folder, keep=run.config.training.keep)
    return folder


def _tensors(run: Run) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The weights that are trained, or their moving average if there is one, and all that training goes on with."""
    whole = run.placement.whole
    weights, optimizer = whole(trained_weights(run.model)), whole(optimizer_tensors(run.optimizers, run.model))
    if broken := next((name for name, value in weights.items() if not value.isfinite().all()), None):
        raise diverged(run, f"{broken} is no longer finite")
    if run.average is None:
        return weights, optimizer
    return whole(run.average.weights), {**optimizer} | {_TRAINED + name: value for name, value in weights.items()}


def restore(run: Run, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
    """Put back what `save` wrote: where there is a moving average, the model on the disk is that.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: a tensor has another shape than this run's model wants.
    """
    if run.average is not None:
        run.average.load(run.placed(weights))
        weights = {name: optimizer[_TRAINED + name] for name in weights}
    load_trained(run.model, run.placed(weights))
    restore_optimizers(run.optimizers, run.model, optimizer, place=run.placement.like)
