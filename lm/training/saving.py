"""What of a run goes to the disk, and comes back: its weights, and the state of its optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lm import checkpoint
from lm.model.lora import load_trained, trained_weights
from lm.optimization.optimizers import optimizer_tensors, restore_optimizers
from lm.training.events import Saved
from lm.training.run import Run, diverged

_TRAINED = "trained."
"""In the optimizer's file, before the names of the weights that are trained while their average is the model."""


def save(run: Run, *, is_best: bool) -> list[Saved]:
    """Copy the run as it is, and have its writer make a checkpoint of that, and then remove those that are not kept.

    The checkpoint before is waited for. Of several processes, all take part, and one writes.

    Returns:
        The checkpoint before, unless the writer has told of it already.

    Raises:
        InputError: the checkpoint before could not be written.
        TrainingError: a weight is no longer finite, which the loss of the next step would show too late.
    """
    before = run.writer.wait()
    if run.clock is not None:
        (run.clock.to_write,) = run.world.summed(run.writer.seconds)
    weights, optimizer = _copied(run)
    run.note_elapsed()
    config, state = run.config, run.state

    def write() -> Saved:
        folder = checkpoint.save_checkpoint(
            run.folder,
            config=config,
            tokenizer=run.tokenizer,
            source_tokenizer=run.source_tokenizer,
            model=weights,
            optimizer=optimizer,
            state=state,
            is_best=is_best,
            resumed_at=run.resumed_at if run.other_branch else None,
        )
        run.other_branch = []
        checkpoint.remove_old(run.folder, keep=config.training.keep)
        return Saved(state.step, folder)

    run.writer.begin(write)
    return before


def _copied(run: Run) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The weights, or their moving average if there is one, and all that training goes on with, as they are now."""
    weights, optimizer = trained_weights(run.model), optimizer_tensors(run.optimizers, run.model)
    if run.average is not None:
        optimizer |= {_TRAINED + name: value for name, value in weights.items()}
        weights = run.average.weights
    copied, copied_optimizer = (run.writer.copied(run.placement.whole(each)) for each in (weights, optimizer))
    if broken := next((name for name, value in copied.items() if not _is_finite(value)), None):
        raise diverged(run, f"{broken} is no longer finite")
    return copied, copied_optimizer


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers are; their least and largest are found as fast as they are read, and are NaN where one is."""
    return all(bool(bound.isfinite()) for bound in value.aminmax())


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
