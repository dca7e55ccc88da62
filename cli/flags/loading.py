"""Loading what a command was given: the decoder of a run, or a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.flags import completion
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError
from lm.run_folder import find_tokenizer

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.model.transformer import DecoderOnly
    from lm.tokenizer.tokenizer import Tokenizer

RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run (its best checkpoint) or one of its checkpoints.",
        autocompletion=completion.runs,
    ),
]


def load_decoder(run: Path, hardware: HardwareConfig, *, instead: str) -> tuple[DecoderOnly, LoadedModel]:
    """The decoder-only model of a run or checkpoint, with its tokenizer.

    Args:
        run: the run, or one of its checkpoints.
        hardware: what to run on.
        instead: what a person can do with a model that translates, for the message.

    Raises:
        InputError: there is no such run, or it is damaged.
        UsageError: its model translates.
    """
    from lm.checkpoint import load_model
    from lm.hardware import inference_hardware
    from lm.model.transformer import DecoderOnly

    loaded = load_model(run, inference_hardware(hardware))
    if loaded.model.config.decoder_only:
        raise UsageError(f"{run}: this run reads a source and translates it: {instead}")
    if not isinstance(loaded.model, DecoderOnly):
        raise UsageError(f"{run}: this run is an encoder-decoder, which translates: {instead}")
    return loaded.model, loaded


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, of a folder that has one, or of a run's last checkpoint; InputError without one."""
    from lm.tokenizer.tokenizer import Tokenizer

    return Tokenizer.load(find_tokenizer(path))
