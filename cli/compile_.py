"""`lm compile`: compile decode kernels once, and choose the fastest dtype of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.loading import run_argument
from cli.new_runs import compile_with_notes


def compile_(
    run: Annotated[
        Path | None,
        run_argument("[RUN]", "Also measure the fastest dtype of this run."),
    ] = None,
) -> None:
    """Compile the decode step for this CPU, for faster generation.

    The code is saved in the folder LM_CACHE, and every command that generates more than a few tokens loads it. It
    serves transformers with full or windowed attention in float32 and int8, and the int8 matmuls of all models.
    Compiling takes about a minute. `make install` and `lm import` do it too, and `lm train` with a budget of two
    minutes or more, in a process of low priority.

    With a RUN, its decoding speed and bits/byte are measured in each dtype, in about half a minute. The fastest is
    recorded in the checkpoint as what `--dtype auto` means on every machine, if its bits/byte are at most 0.1% above
    those of float32. `lm train` and `lm import` record one after a brief measurement.

    Examples:
      lm compile
      lm compile runs/novel
      lm generate runs/novel "It was" --dtype int8
    """
    from lm.kernels.code_cache import is_installed
    from lm.run_folder import find_checkpoint, verify_checkpoint

    checkpoint = None if run is None else find_checkpoint(run)
    if checkpoint is not None:
        verify_checkpoint(checkpoint, to_train=False)  # before anything is compiled
    if checkpoint is None or is_installed():
        compile_with_notes()
    if run is not None and checkpoint is not None:
        _choose_dtype(run, checkpoint)


def _choose_dtype(run: Path, checkpoint: Path) -> None:
    """Measure the fastest dtype of a run and store it."""
    from cli.console.text import print_note
    from lm.benchmark import compare_dtypes, select_fastest_dtype
    from lm.config.run_config import HardwareConfig
    from lm.engine.fastest_dtype import save_fastest_dtype
    from lm.hardware import select_device

    hardware = HardwareConfig()
    figures = compare_dtypes(run, hardware)
    for measured in figures:
        print_note(str(measured))
    chosen = select_fastest_dtype(figures)
    save_fastest_dtype(checkpoint, select_device(hardware), chosen)
    print_note(f"{run}: --dtype auto is {chosen} from now on")
