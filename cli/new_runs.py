"""What commands do beside their own work: import models of the Hub, compile, measure dtypes, warn of copies."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cli.console.text import print_labelled, print_note
from cli.loading import import_torch
from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig
from lm.errors import InputError

if TYPE_CHECKING:
    from lm.corpus.store import Manifest

_MUCH_REPEATED = 0.05  # as a fraction of the held-out text; even stories made from templates stay below 0.02


def resolve_hub_name(run: Path) -> Path:
    """Return the run of a name: a model of the Hugging Face Hub (`hf:ORG/NAME`) is downloaded and imported once."""
    if not str(run).startswith("hf:"):
        return run
    import_torch()
    from lm.interop.hugging_face.hub import import_from_hub

    return import_from_hub(str(run), on_import=compile_and_record_dtype)


def compile_and_record_dtype(run: Path) -> None:
    """Compile what decodes an imported run, unless it is small, and record its fastest dtype."""
    from lm.benchmark import MIN_PARAMETERS
    from lm.engine.selection import needs_compiling
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
    from lm.engine.compiled.build import compile_decode_step
    from lm.kernels.code_cache import is_complete

    if is_complete():
        return print_note("the decode step is compiled already")
    print_note("compiling the decode step for this CPU, which takes a minute or more")
    return compile_decode_step()


def suggest_compiling(config: ModelConfig, hardware: HardwareConfig) -> None:
    """Print that `lm compile` makes a model faster: once for a version and processor, which have a folder."""
    from lm.engine.selection import needs_compiling
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
