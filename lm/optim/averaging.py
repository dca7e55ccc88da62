"""Averages of weights: over checkpoints, and exponential moving averages (EMA) in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from lm import checkpoint, run_folder
from lm.errors import InputError, UsageError
from lm.model.lora import load_trainable, trainable_weights


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


class MovingAverage:
    """EMA of the trainable weights of a model.

    Source: Polyak and Juditsky 1992; exponential, with a decay that grows to its final value, as in TensorFlow.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        """Start at the model's weights; `decay` is the final value."""
        self._model, self._decay = model, decay
        self.weights = {name: value.detach().clone() for name, value in trainable_weights(self._model).items()}

    def update(self, step: int) -> None:
        """Update the average after optimizer step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages, weights = list(self.weights.values()), list(trainable_weights(self._model).values())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load a saved average; KeyError if a weight is missing."""
        for name, value in self.weights.items():
            value.copy_(weights[name])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within the context, the model has the averaged weights."""
        trained = {name: value.clone() for name, value in trainable_weights(self._model).items()}
        load_trainable(self._model, self.weights)
        try:
            yield
        finally:
            load_trainable(self._model, trained)
