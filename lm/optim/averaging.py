"""Average the weights of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lm import checkpoint, run_folder
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
    known, total = None, dict[str, torch.Tensor]()
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
    return checkpoint.write_derived_run(checkpoints[-1], out, average)
