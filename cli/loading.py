"""Load the model of a run, or a tokenizer, for a command: import it from the Hub, compile, measure dtypes."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import arguments
from cli.console import print_labelled, print_note
from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig
from lm.errors import InputError, UsageError
from lm.run_folder import find_tokenizer

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.corpus import Manifest
    from lm.decoding.classifier import Classifier
    from lm.model import DecoderOnly, EncoderOnly
    from lm.tokenizer import Tokenizer

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
    return typer.Argument(metavar=metavar, help=text, autocompletion=arguments.complete_runs)


def run_option(flag: str, metavar: str, text: str) -> Any:
    """Return an option whose value the shell completes to runs."""
    return typer.Option(flag, metavar=metavar, help=text, autocompletion=arguments.complete_runs)


_RUN = "A run (its best checkpoint), or a checkpoint"
RunPath = Annotated[Path, run_argument("RUN", f"{_RUN}.")]
EnsemblePath = Annotated[Path, run_argument("RUN", f"{_RUN}; RUN,RUN: an ensemble.")]


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
    from lm.engine import load_for_decoding

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
    from lm.data.windows import read_completions
    from lm.decoding.classifier import build_classifier

    loaded = _load(run, hardware)
    completions = () if labels is None else read_completions(labels, loaded.config.data.for_other_files())
    return build_classifier(loaded, completions, batch_size=batch_size), loaded


def _load(run: Path, hardware: HardwareConfig) -> LoadedModel:
    from lm.checkpoint import load_model
    from lm.hardware import select_hardware

    return load_model(run, select_hardware(hardware))


def _model_for(loaded: LoadedModel, expected: str) -> Any:
    """Return the model; UsageError if it is for another purpose."""
    if (purpose := loaded.config.model.purpose) != expected:
        raise UsageError(f"{loaded.folder}: this run {purpose}: use lm {COMMANDS[purpose]}")
    return loaded.model


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a file, a folder, or a run's last checkpoint; InputError without one."""
    from lm.tokenizer import Tokenizer

    return Tokenizer.load(find_tokenizer(path))


_MUCH_REPEATED = 0.05  # as a fraction of the held-out text; even stories made from templates stay below 0.02


def resolve_hub_name(run: Path) -> Path:
    """Return the run of a name: a model of the Hugging Face Hub (`hf:ORG/NAME`) is downloaded and imported once."""
    if not str(run).startswith("hf:"):
        return run
    import_torch()
    from lm.interop.hugging_face import import_from_hub

    return import_from_hub(str(run), on_import=compile_and_record_dtype)


def compile_and_record_dtype(run: Path) -> None:
    """Compile what decodes an imported run, unless it is small, and record its fastest dtype."""
    from lm.benchmark import MIN_PARAMETERS
    from lm.engine import needs_compiling
    from lm.hardware import select_device
    from lm.run_folder import count_parameters, find_checkpoint, load_config

    checkpoint, device = find_checkpoint(run), select_device(HardwareConfig())
    if count_parameters(checkpoint) >= MIN_PARAMETERS and needs_compiling(load_config(checkpoint).model, device):
        with suppress(InputError):  # the cache is not writable
            compile_with_notes()
    record_decoding_dtype(run)


def record_decoding_dtype(run: Path, hardware: HardwareConfig | None = None) -> None:
    """Measure in which dtype a new run decodes fastest, record it, and print it."""
    from lm.benchmark import measure_and_record_dtype

    if (chosen := measure_and_record_dtype(run, hardware or HardwareConfig())) is not None:
        print_labelled("decoding", f"{chosen} (--dtype float32 is exact)")


def compile_with_notes() -> None:
    """Compile the decode step unless it is."""
    from lm.engine import compile_decode_step
    from lm.kernels.code_cache import is_complete

    if is_complete():
        return print_note("the decode step is compiled already")
    print_note("compiling the decode step for this CPU, which takes a minute or more")
    return compile_decode_step()


def suggest_compiling(config: ModelConfig, hardware: HardwareConfig) -> None:
    """Print that `lm compile` makes a model faster: once for a version and processor, which have a folder."""
    from lm.engine import needs_compiling
    from lm.hardware import select_device
    from lm.kernels.code_cache import code_folder

    if needs_compiling(config, select_device(hardware)):
        with suppress(InputError, OSError):  # it was printed before, or the cache is not writable
            code_folder().mkdir(parents=True)
            print_labelled("note", "this is faster after `lm compile`, which takes a minute or more, once")


def warn_of_repetition(manifest: Manifest) -> None:
    """Warn if repeated text makes the validation loss too low."""
    held_out = manifest.repeated or 0
    if held_out >= _MUCH_REPEATED:
        problem = (
            "of the held-out text occurs in the training text too: the validation loss will look better than it is"
        )
        print_labelled("warning", f"{held_out:.0%} {problem}")
