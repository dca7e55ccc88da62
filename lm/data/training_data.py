"""The training data of a run, from a folder that `lm.data` prepared."""

from __future__ import annotations

from pathlib import Path

from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.data.batch import TrainingData
from lm.data.examples.batches import ExampleData
from lm.data.examples.store import open_examples
from lm.data.pairs.batches import PairData
from lm.data.pairs.store import PairManifest, is_pairs, open_pairs
from lm.data.shards import Manifest, open_split, read_manifest
from lm.data.windows.batches import WindowData
from lm.errors import UsageError


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """The data in a folder, batched as a run wants it.

    Args:
        folder: of token shards, of examples or of pairs.
        config: of the run; its model must be one for such data.

    Raises:
        InputError: the folder holds no prepared data, or too little of it.
        UsageError: the model is not one for this data.
    """
    context, training = config.model.context_length, config.training
    check_model(config.model, pairs=is_pairs(folder))
    if is_pairs(folder):
        return _open_pairs(folder, config)
    rows = batch_rows(config)
    if is_supervised(folder):
        examples = open_examples(folder, "train"), open_examples(folder, "validation")
        return ExampleData(*examples, context=context, rows=rows, seed=training.seed)
    return WindowData(
        open_split(folder, "train"), open_split(folder, "validation"), context=context, rows=rows, seed=training.seed
    )


def batch_rows(config: RunConfig) -> int:
    """Sequences in an optimizer step, of text or of examples: as many as asked for, or as its tokens fill."""
    training = config.training
    if training.batch_tokens is None:
        return training.batch_size
    return max(1, training.batch_tokens // config.model.context_length)


def check_model(config: ModelConfig, *, pairs: bool) -> None:
    """UsageError unless a model of this kind can be trained on pairs, or on anything else."""
    if pairs and not config.is_encoder_decoder:
        raise UsageError("pairs need an encoder-decoder (--n-encoder-layers, or --preset translation)")
    if config.is_encoder_decoder and not pairs:
        raise UsageError("the model is an encoder-decoder, which needs pairs of texts (--source, --target)")


def is_supervised(folder: Path) -> bool:
    """Whether the data in a folder are examples."""
    return not is_pairs(folder) and read_manifest(folder).supervised


def _open_pairs(folder: Path, config: RunConfig) -> PairData:
    training = config.training
    return PairData(
        open_pairs(folder),
        config.parallel,
        batch_tokens=training.batch_tokens,
        rows=training.batch_size if training.batch_tokens is None else None,
        seed=training.seed,
        context=config.model.context_length if config.model.positions == "learned" else None,
    )


def data_key(folder: Path) -> str:
    """A hash of what the data in a folder was made from; InputError if it holds none."""
    return _manifest(folder).key


def data_files(folder: Path) -> list[str]:
    """The files that the data in a folder was made from, as the user named them; InputError if it holds none."""
    return [record.path for record in _manifest(folder).sources]


def _manifest(folder: Path) -> Manifest | PairManifest:
    return open_pairs(folder).manifest if is_pairs(folder) else read_manifest(folder)
