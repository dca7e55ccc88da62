"""The mean of the weights of several checkpoints, as a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm import checkpoint, run_folder
from lm.errors import InputError, UsageError


def average(checkpoints: Sequence[Path], out: Path) -> Path:
    """Write a run whose only checkpoint has the mean of some weights; it cannot be resumed, only used or started from.

    Args:
        checkpoints: folders of checkpoints of the same model, the last one's configuration and state being taken.
        out: the folder of the new run; InputError if it holds one already.

    Returns:
        The new checkpoint's folder.

    Raises:
        InputError: a checkpoint is damaged, or they are not of the same model.

    Source: Vaswani et al. 2017, section 6.1, who averaged the last 5 checkpoints.
    """
    run_folder.refuse_existing(out)
    return checkpoint.derive(checkpoints[-1], out, _mean(checkpoints))


def latest(run: Path, count: int) -> list[Path]:
    """The latest checkpoints of a run, oldest first; UsageError if it has fewer than two."""
    if run_folder.is_checkpoint(run):
        raise UsageError(f"{run}: is one checkpoint, but a mean takes two: name another one too, or their run")
    found = run_folder.checkpoints(run)[-count:]
    if len(found) < 2:
        raise UsageError(
            f"{run}: has {len(found)} checkpoint(s), but a mean takes two: train with more kept", settings=["keep"]
        )
    return found


def _mean(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights, summed in float64; InputError unless they are of one model and one tokenizer."""
    total: dict[str, Tensor] = {}
    for folder in checkpoints:
        weights = checkpoint.load_weights(folder)
        if total and _shapes(weights) != _shapes(total):
            raise InputError(f"{folder}: another model than {checkpoints[0]}; only checkpoints of one can be averaged")
        if _tokenizers(folder) != _tokenizers(checkpoints[0]):
            raise InputError(f"{folder}: another tokenizer than {checkpoints[0]}, so its weights mean something else")
        for name, value in weights.items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value.double()
    return {name: (value / len(checkpoints)).float() for name, value in total.items()}


def _tokenizers(folder: Path) -> list[str | None]:
    """The hashes of a checkpoint's tokenizer and of that of its sources."""
    return [None if each is None else each.sha256 for each in checkpoint.load_tokenizers(folder)]


def _shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in weights.items()}
