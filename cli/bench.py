"""`lm bench`: speed of this machine; `lm compile`: compile decode kernels once, and choose a run's fastest dtype."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cli import arguments
from cli.arguments import AsJson
from cli.console import format_json_line, print_note
from cli.loading import compile_with_notes, run_argument
from cli.options import Options, with_settings
from lm.config.presets import build_run_config
from lm.config.run_config import INFERENCE_ONLY_DTYPES, HardwareConfig, RunConfig
from lm.errors import UsageError

_DEFAULT_PRESETS = ("tiny", "small")

_Presets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRESET]...",
        help=f"Presets of decoders. [default: {' '.join(_DEFAULT_PRESETS)}]",
        autocompletion=arguments.complete_presets,
    ),
]
_Seconds = Annotated[
    float, typer.Option("--seconds", min=0, max=1e6, metavar="SECONDS", help="Approximate time of each measurement.")
]
_BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, metavar="N", help="Sequences per training step. [default: 4096 tokens]"),
]


@with_settings({"hardware": HardwareConfig}, "device dtype threads")
def bench(
    presets: _Presets = None,
    *,
    seconds: _Seconds = 2.0,
    batch_size: _BatchSize = None,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Measure how fast this machine trains and generates.

    Each preset is measured with random weights and tokens: optimizer steps as in lm train, in the dtype that it would
    choose here; prefill of a prompt of half the context; and greedy decoding of one text and of a batch of 16.

    float16 and int8 are for inference only. With int8, compiled code (lm compile) multiplies int8 weights by inputs
    rounded to 16 bits; without it, both are converted to float32.

    Examples:
      lm bench
      lm bench gpt2 --dtype bfloat16 --seconds 10
      lm bench nanogpt-cpu --threads 1 --json
    """
    inference = options.build(HardwareConfig)
    configs = [_preset_config(name, inference) for name in presets or _DEFAULT_PRESETS]
    import torch

    from cli.console.figures import print_table
    from lm.benchmark import Measurement, measure_speed

    results: list[Measurement] = []
    for config in configs:
        print_note(f"measuring {config.preset}")
        results += measure_speed(config, seconds=seconds, generating=inference, rows=batch_size)
    if as_json:
        print(format_json_line({"torch": torch.__version__, "measurements": [each._asdict() for each in results]}))
        return
    columns = [name.replace("tokens_per_second", "tokens/s") for name in Measurement._fields]
    print_table(columns, [each._replace(tokens_per_second=round(each.tokens_per_second)) for each in results])


def _preset_config(name: str, requested: HardwareConfig) -> RunConfig:
    """Return a preset on the requested hardware, in a dtype that it can be trained in."""
    hardware = dataclasses.replace(requested, dtype="auto") if requested.dtype in INFERENCE_ONLY_DTYPES else requested
    config = dataclasses.replace(build_run_config(name), hardware=hardware)
    if config.model.purpose != "continues texts":
        raise UsageError(f"{name} is a model that {config.model.purpose}, not one that continues texts")
    return config


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
    from lm.benchmark import compare_dtypes, select_fastest_dtype
    from lm.engine import save_fastest_dtype
    from lm.hardware import select_device

    hardware = HardwareConfig()
    figures = compare_dtypes(run, hardware)
    for measured in figures:
        print_note(str(measured))
    chosen = select_fastest_dtype(figures)
    save_fastest_dtype(checkpoint, select_device(hardware), chosen)
    print_note(f"{run}: --dtype auto is {chosen} from now on")
