"""Average the weights of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lm import checkpoint, run_folder
from lm.errors import InputError, UsageError


def average_checkpoints(checkpoints: Sequence[Path], out: Path) -> Path:
    """Write a run whose only checkpoint has the averaged weights; it cannot be resumed.

    Args:
        checkpoints: folders of checkpoints of one model; config and state are those of the last.
        out: folder of the new run; InputError if it holds one.

    Returns:
        The folder of the new checkpoint.

    Raises:
        InputError: a checkpoint is damaged, or they are of different models.

    Source: Vaswani et al. 2017, section 6.1, who averaged the last 5 checkpoints.
    """
    run_folder.refuse_existing(out)
    return checkpoint.write_derived_run(checkpoints[-1], out, _average_weights(checkpoints))


def latest_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the latest checkpoints of a run, oldest first; UsageError if it has fewer than two."""
    if run_folder.is_checkpoint(run):
        raise UsageError(f"{run}: a single checkpoint cannot be averaged: name at least two, or a run")
    checkpoints = run_folder.list_checkpoints(run)[-count:]
    if len(checkpoints) < 2:
        raise UsageError(
            f"{run}: has {len(checkpoints)} checkpoint(s); averaging needs two: train with more kept",
            settings=["keep"],
        )
    return checkpoints


def _average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """Average in float64; InputError unless all checkpoints have the same model and tokenizer."""
    total: dict[str, Tensor] = {}
    for folder in checkpoints:
        weights = checkpoint.load_weights(folder)
        if total and _shapes(weights) != _shapes(total):
            raise InputError(f"{folder}: tensor shapes differ from {checkpoints[0]}'s")
        if _tokenizer_hashes(folder) != _tokenizer_hashes(checkpoints[0]):
            raise InputError(f"{folder}: another tokenizer; only checkpoints with one tokenizer can be averaged")
        for name, value in weights.items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + value.double()
    return {name: (value / len(checkpoints)).float() for name, value in total.items()}


def _tokenizer_hashes(folder: Path) -> list[str | None]:
    return [None if tokenizer is None else tokenizer.sha256 for tokenizer in checkpoint.load_tokenizers(folder)]


def _shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in weights.items()}
