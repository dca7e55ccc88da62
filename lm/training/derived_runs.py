"""Runs made from checkpoints of others: weights averaged, or adapters merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from lm import checkpoint, run_folder
from lm.config.run_config import LoraConfig
from lm.errors import InputError, UsageError


def average_checkpoints(checkpoints: Sequence[Path], out: Path) -> Path:
    """Write a run whose only checkpoint has the weights of several, averaged in float64; it cannot be resumed.

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
    if len(set(checkpoints)) < max(2, len(checkpoints)):
        raise UsageError("name a run with several checkpoints, or at least two different ones")
    known, total = None, dict[str, Tensor]()
    for folder in checkpoints:
        weights = checkpoint.load_weights(folder)
        tokenizers = [tokenizer and tokenizer.sha256 for tokenizer in checkpoint.load_tokenizers(folder)]
        model = tokenizers, {name: value.shape for name, value in weights.items()}
        if known not in (None, model):
            raise InputError(f"{folder}: another tokenizer or other tensor shapes than in {checkpoints[0]}")
        known = model
        for name, value in weights.items():
            total[name] = total.get(name, 0) + value.double()
    average = {name: (value / len(checkpoints)).float() for name, value in total.items()}
    return write_derived_run(checkpoints[-1], out, average)


def write_merged_run(path: Path, out: Path) -> Path:
    """Write a run with adapters merged into their base weights.

    Args:
        path: a run, whose best checkpoint is used, or a checkpoint.
        out: folder of the new run; InputError if it holds one.

    Returns:
        The folder of the new checkpoint.

    Raises:
        InputError: the run is damaged, or its base weights are missing or have changed.
        UsageError: it has no adapters.
    """
    run_folder.refuse_existing(out)
    source = run_folder.find_checkpoint(path)
    if not run_folder.load_config(source).lora:
        raise UsageError(f"{path}: has no adapters, so there is nothing to merge")
    return write_derived_run(source, out, checkpoint.load_weights(source), keeps_scores=True)


def write_derived_run(source: Path, out: Path, weights: Mapping[str, Tensor], *, keeps_scores: bool = False) -> Path:
    """Write a run whose only checkpoint has weights derived from another one; it cannot be resumed.

    Args:
        source: checkpoint whose settings, plan, tokenizers and progress are copied.
        weights: of the whole model, without adapters.
        keeps_scores: whether the scores of the source hold, because the model is equivalent.

    Returns:
        The folder of the new checkpoint.
    """
    tokenizer, source_tokenizer = checkpoint.load_tokenizers(source)
    config, state = run_folder.load_config(source), run_folder.load_state(source)
    return checkpoint.save_checkpoint(
        out,
        config=config.replace(origin=run_folder.describe_parent(source), lora=LoraConfig(), base_sha256=None),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model=weights,
        state=dataclasses.replace(state if keeps_scores else run_folder.TrainingState(state.step), finished=True),
        is_best=True,
    )
