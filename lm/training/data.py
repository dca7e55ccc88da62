"""The training data of a run, from a folder that `lm.data` prepared."""

from __future__ import annotations

from pathlib import Path

from lm.config import RunConfig
from lm.data.batches import TrainingData
from lm.data.shards import open_split, read_manifest
from lm.data.windows import WindowData


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """The data in a folder, batched as a run wants it.

    Raises:
        InputError: the folder holds no prepared data, or too little of it.
    """
    context, training = config.model.context_length, config.training
    rows = training.batch_size if training.batch_tokens is None else max(1, training.batch_tokens // context)
    return WindowData(
        open_split(folder, "train"), open_split(folder, "validation"), context=context, rows=rows, seed=training.seed
    )


def data_key(folder: Path) -> str:
    """A hash of what the data in a folder was made from; InputError if it holds none."""
    return read_manifest(folder).key
