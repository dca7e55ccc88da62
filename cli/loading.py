"""Load the model of a run, or a tokenizer, for a command."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import completion
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError
from lm.run_folder import RUNS, find_tokenizer, is_run, list_run_folders

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.decoding.classifier import Classifier, CompletionClassifier
    from lm.model.transformer import DecoderOnly, EncoderOnly
    from lm.tokenizer.tokenizer import Tokenizer

_SHOWN_CHARACTERS = 60  # of a text

Labels = Annotated[
    str | None,
    typer.Option("--labels", metavar="FILE", help="Decoders: examples with all labels. [default: the run's]"),
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run (its best checkpoint), or a checkpoint.",
        autocompletion=completion.complete_runs,
    ),
]


def refuse_text_as_run(run: Path, text: str | None, *, command: str) -> None:
    """Raise UsageError if a text is given in place of the run, with the command that was meant."""
    if os.path.exists(run):  # noqa: PTH110 (Path.exists raises OSError for a text longer than a file name)
        return
    if text is not None and os.path.isdir(text) and is_run(Path(text)):  # noqa: PTH112 (the same)
        name = shlex.quote(text)
    elif text is None and " " in str(run):
        runs = list_run_folders(RUNS) if RUNS.is_dir() else []
        name = shlex.quote(str(runs[0])) if len(runs) == 1 else "RUN"
    else:
        return
    shown = str(run) if len(str(run)) <= _SHOWN_CHARACTERS else "..."
    raise UsageError(f"no run is named {shown!r}; a run comes before the text: {command} {name} {shlex.quote(shown)}")


def import_torch() -> None:
    """Import torch and exclude its objects from garbage collection."""
    if "torch" in sys.modules:
        return
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()


def load_decoder(run: Path, hardware: HardwareConfig, *, instead: str) -> tuple[DecoderOnly, LoadedModel]:
    """Load a decoder-only model with its tokenizer, in the dtype that it generates fastest in.

    UsageError for a model of another kind, with the command for its kind: `instead`, if it translates.
    """
    from lm.engine.fastest_dtype import load_for_decoding
    from lm.model.transformer import DecoderOnly

    loaded = load_for_decoding(run, hardware)
    if loaded.model.config.translates or not isinstance(loaded.model, DecoderOnly):
        raise _wrong_kind_error(run, loaded, instead=instead)
    return loaded.model, loaded


def load_draft(run: Path, hardware: HardwareConfig, loaded: LoadedModel) -> DecoderOnly:
    """Load a draft model for speculative decoding; UsageError if it is not a decoder, or has another tokenizer."""
    draft, other = load_decoder(run, hardware, instead="give one that continues texts (--draft-model)")
    same = other.tokenizer.sha256 == loaded.tokenizer.sha256
    if not same or draft.config.vocab_size != loaded.model.config.vocab_size:
        advice = "train one with the other's (--tokenizer)"
        raise UsageError(
            f"{run}: has another tokenizer than {loaded.folder}, so it cannot be the --draft-model; {advice}"
        )
    return draft


def load_masked(run: Path, hardware: HardwareConfig) -> tuple[EncoderOnly, LoadedModel]:
    """Load a masked model; errors as of `load_decoder`."""
    from lm.model.transformer import EncoderOnly

    loaded = _load(run, hardware)
    if not isinstance(loaded.model, EncoderOnly) or loaded.model.config.labels:
        raise _wrong_kind_error(run, loaded)
    return loaded.model, loaded


def load_classifier(
    run: Path, hardware: HardwareConfig, *, labels: str | None, batch_size: int
) -> tuple[Classifier | CompletionClassifier, LoadedModel]:
    """Load a classifier, or a decoder that chooses from recorded completions or from those in the file `labels`."""
    from lm.data.labels import read_completions
    from lm.decoding.classifier import build_classifier

    loaded = _load(run, hardware)
    completions = () if labels is None else read_completions(labels, loaded.config.data.for_other_files())
    if not (loaded.config.is_classifier or completions or loaded.config.learns_completions):
        raise _wrong_kind_error(run, loaded)
    return build_classifier(loaded, completions, batch_size=batch_size), loaded


def load_scoring_model(
    run: Path, hardware: HardwareConfig, *, instead: str
) -> tuple[DecoderOnly | EncoderOnly, LoadedModel]:
    """Load a decoder or masked model for scoring text; see `load_decoder`."""
    from lm.model.transformer import EncoderDecoder

    loaded = _load(run, hardware)
    config = loaded.model.config
    if config.translates or config.labels or isinstance(loaded.model, EncoderDecoder):
        raise _wrong_kind_error(run, loaded, instead=instead)
    return loaded.model, loaded


_COMMANDS = {"continues texts": "lm generate", "fills blanks": "lm fill", "classifies texts": "lm classify",
             "translates": "lm translate"}  # fmt: skip


def _load(run: Path, hardware: HardwareConfig) -> LoadedModel:
    from lm.checkpoint import load_model
    from lm.hardware import select_inference_hardware

    return load_model(run, select_inference_hardware(hardware))


def _wrong_kind_error(run: Path, loaded: LoadedModel, *, instead: str | None = None) -> UsageError:
    """Return the error for a model of the wrong kind, with the command for its kind."""
    config = loaded.model.config
    if config.translates and instead is not None:
        is_two = config.is_encoder_decoder
        description = "is an encoder-decoder, which translates" if is_two else "reads a source and translates it"
        return UsageError(f"{run}: this run {description}: {instead}")
    purpose = loaded.config.purpose
    return UsageError(f"{run}: this run {purpose}: use {_COMMANDS[purpose]}")


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a file, a folder, or a run's last checkpoint; InputError without one."""
    from lm.tokenizer.tokenizer import Tokenizer

    return Tokenizer.load(find_tokenizer(path))
