"""The training data of a run, from a folder that `lm.corpus` prepared, of whatever kind they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.corpus import folders
from lm.corpus.manifest import PartitionManifest, PreparedManifest
from lm.data.examples import ExampleData
from lm.data.labels import LabelledData
from lm.data.pairs import PairData
from lm.data.training_data import TrainingData
from lm.data.windows import MaskedWindowData, WindowData
from lm.errors import InputError, UsageError

KINDS: dict[str, tuple[type[TrainingData], type[TrainingData] | None]] = {
    "text": (WindowData, MaskedWindowData),
    "examples": (ExampleData, LabelledData),
    "pairs": (PairData, None),
}
"""By the kind that a manifest says: the data of a model that continues texts or translates, and of a masked one."""


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """The data in a folder, batched as a run wants it.

    Args:
        folder: of prepared data of any kind.
        config: of the run; its model must be one for such data.

    Raises:
        InputError: the folder holds no prepared data, or too little of it.
        UsageError: the model is not one for this data.
    """
    kind = PreparedManifest.read(folder).kind
    if kind not in KINDS:
        raise InputError(f"{folder}: holds {PartitionManifest.noun}; join all of them first")
    data, masked = KINDS[kind]
    check_model(config.model, pairs=data.holds_pairs)
    return (masked or data if config.model.is_masked else data).open(folder, config)


def check_model(config: ModelConfig, *, pairs: bool) -> None:
    """UsageError unless a model of this kind can be trained on pairs, or on anything else."""
    if pairs and not config.translates:
        raise UsageError(
            "pairs need an encoder-decoder, as the preset translation has, or one stack that reads both sides",
            settings=["n_encoder_layers", "preset=translation", "decoder_only"],
        )
    if config.translates and not pairs:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "a decoder for translation"
        raise UsageError(f"the model is {kind}, which needs pairs of texts", settings=["source", "target"])


def data_key(folder: Path) -> str:
    """A hash of what the data in a folder was made from; InputError if it holds none."""
    return PreparedManifest.read(folder).key


def verify(folder: Path, *, advice: str, settings: Sequence[str] = ()) -> None:
    """InputError with `advice` and `settings` to change if the data in a folder are damaged, by their checksums."""
    folders.verify(folder, PreparedManifest.read(folder).sha256, advice=advice, settings=settings)


def data_files(folder: Path) -> list[str]:
    """The files that the data in a folder was made from, as the user named them; InputError if it holds none."""
    return [record.path for record in PreparedManifest.read(folder).sources]
