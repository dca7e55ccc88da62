"""Load the model of a run, or a tokenizer, for a command."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import completion
from lm.config.run_config import HardwareConfig
from lm.errors import UsageError
from lm.run_folder import find_tokenizer

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.decoding.classifier import Classifier
    from lm.model.transformer import DecoderOnly, EncoderOnly
    from lm.tokenizer.tokenizer import Tokenizer

COMMANDS = {
    "continues texts": "generate", "fills blanks": "fill", "classifies texts": "classify", "translates": "translate",
}  # fmt: skip
"""What uses a model, by its purpose."""

Labels = Annotated[
    str | None,
    typer.Option("--labels", metavar="FILE", help="Decoders: examples with all labels. [default: the run's]"),
]


def run_argument(metavar: str, text: str) -> Any:
    """Return an argument that the shell completes to runs."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=completion.complete_runs)


def run_option(flag: str, metavar: str, text: str) -> Any:
    """Return an option whose value the shell completes to runs."""
    return typer.Option(flag, metavar=metavar, help=text, autocompletion=completion.complete_runs)


RunPath = Annotated[Path, run_argument("RUN", "A run (its best checkpoint), or a checkpoint.")]


def import_torch() -> None:
    """Import torch and exclude its objects from garbage collection."""
    if "torch" in sys.modules:
        return
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()


def load_decoder(run: Path, hardware: HardwareConfig) -> tuple[DecoderOnly, LoadedModel]:
    """Load a model that continues texts, in the dtype that it generates fastest in; UsageError for another."""
    from lm.engine.fastest_dtype import load_for_decoding

    loaded = load_for_decoding(run, hardware)
    return _model_for(loaded, "continues texts"), loaded


def load_draft(run: Path, hardware: HardwareConfig, loaded: LoadedModel) -> DecoderOnly:
    """Load a draft model for speculative decoding; UsageError if it is not a decoder, or has another tokenizer."""
    draft, other = load_decoder(run, hardware)
    if other.tokenizer.sha256 != loaded.tokenizer.sha256 or draft.config.vocab_size != loaded.model.config.vocab_size:
        raise UsageError(f"{run}: a draft model needs the tokenizer of {loaded.folder}")
    return draft


def load_masked(run: Path, hardware: HardwareConfig) -> tuple[EncoderOnly, LoadedModel]:
    """Load a masked model; UsageError for another."""
    loaded = _load(run, hardware)
    return _model_for(loaded, "fills blanks"), loaded


def load_classifier(
    run: Path, hardware: HardwareConfig, *, labels: str | None, batch_size: int
) -> tuple[Classifier, LoadedModel]:
    """Load a classifier, or a decoder that chooses from recorded completions or from those in the file `labels`."""
    from lm.data.rows import read_completions
    from lm.decoding.classifier import build_classifier

    loaded = _load(run, hardware)
    completions = () if labels is None else read_completions(labels, loaded.config.data.for_other_files())
    return build_classifier(loaded, completions, batch_size=batch_size), loaded


def _load(run: Path, hardware: HardwareConfig) -> LoadedModel:
    from lm.checkpoint import load_model
    from lm.hardware import select_inference_hardware

    return load_model(run, select_inference_hardware(hardware))


def _model_for(loaded: LoadedModel, expected: str) -> Any:
    """Return the model; UsageError if it is for another purpose."""
    if (purpose := loaded.config.model.purpose) != expected:
        raise UsageError(f"{loaded.folder}: this run {purpose}: use lm {COMMANDS[purpose]}")
    return loaded.model


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a file, a folder, or a run's last checkpoint; InputError without one."""
    from lm.tokenizer.tokenizer import Tokenizer

    return Tokenizer.load(find_tokenizer(path))
