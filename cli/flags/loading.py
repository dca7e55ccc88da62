"""Loading a run for the commands that need a decoder-only model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.flags import completion
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.model.transformer import DecoderOnly

RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run (its best checkpoint) or one of its checkpoints.",
        autocompletion=completion.runs,
    ),
]


def load_decoder(run: Path, hardware: HardwareConfig, *, command: str) -> tuple[DecoderOnly, LoadedModel]:
    """The decoder-only model of a run or checkpoint, with its tokenizer.

    Raises:
        InputError: there is no such run, or it is damaged.
        UsageError: its model is an encoder-decoder.
    """
    from lm.checkpoint import load_model
    from lm.hardware import inference_hardware
    from lm.model.transformer import DecoderOnly

    loaded = load_model(run, inference_hardware(hardware))
    if not isinstance(loaded.model, DecoderOnly):
        raise UsageError(f"{run}: this run is an encoder-decoder; lm {command} needs a decoder-only model")
    return loaded.model, loaded
