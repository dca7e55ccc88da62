"""`lm bench`: training and generation speed of this machine, compared with its limits."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from cli import completion
from cli.console.text import format_json_line, format_quantity, format_threads, print_note
from cli.options import Options, with_settings
from lm.config.hardware import INFERENCE_ONLY_DTYPES, HardwareConfig
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.errors import UsageError

_DEFAULT_PRESETS = ("tiny", "small")

_Presets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRESET]...",
        help=f"Presets of decoders. [default: {' '.join(_DEFAULT_PRESETS)}]",
        autocompletion=completion.complete_presets,
    ),
]
_Seconds = Annotated[
    float, typer.Option("--seconds", min=0, max=1e6, metavar="SECONDS", help="Approximate time of each measurement.")
]
_BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, metavar="N", help="Sequences per training step. [default: by the time]"),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: machine, limits, measurements.")]


@with_settings({"hardware": HardwareConfig}, "device dtype threads")
def bench(
    presets: _Presets = None,
    *,
    seconds: _Seconds = 2.0,
    batch_size: _BatchSize = None,
    as_json: _AsJson = False,
    options: Options,
) -> None:
    """Measure how fast this machine trains and generates.

    First come the limits: the speed of large matmuls, and memory bandwidth. Then each preset is measured with random
    weights and tokens: optimizer steps as in lm train, in the dtype that it would choose here; prefill of a prompt of
    half the context; and greedy decoding of one text and of a batch of 16.

    MFU (model-FLOPs utilisation) is the model's FLOP/s relative to those of a matmul in the same dtype, measured just
    before. A training token takes 6 FLOPs per matrix parameter, the output layer included, and 6 · layers · d_model ·
    context for attention; without a backward pass a third of that.

    float16 and int8 are for inference only. With int8, compiled code (lm compile) multiplies int8 weights by inputs
    rounded to 16 bits; without it, both are converted to float32. MFU is then relative to float32.

    Examples:
      lm bench
      lm bench gpt2 --dtype bfloat16 --seconds 10
      lm bench small --dtype int8
      lm bench nanogpt-cpu --threads 1 --json
    """
    inference = options.build(HardwareConfig)
    configs = [_preset_config(name, inference) for name in presets or _DEFAULT_PRESETS]
    import torch

    from cli.console.tables import print_table
    from lm.benchmark import Measurement, measure_hardware_limits, measure_speed
    from lm.hardware import select_inference_hardware

    def progress(task: str) -> None:
        print_note(f"measuring {task}")

    progress("the limits of the machine")
    limits, hardware = measure_hardware_limits(inference), select_inference_hardware(inference)
    results: list[Measurement] = []
    for config in configs:
        measured = measure_speed(
            config, limits, seconds=seconds, generating=inference, rows=batch_size, progress=progress
        )
        results.extend(measured)
    name = torch.cuda.get_device_name() if hardware.device == "cuda" else hardware.device
    machine = {"device": name, "threads": hardware.threads, "torch": torch.__version__}
    if as_json:
        print(format_json_line({**machine, "limits": vars(limits), "measurements": [vars(each) for each in results]}))
        return
    print(f"{name}, {format_threads(hardware.threads)}, torch {torch.__version__}\n")
    rates = [(f"matmul, {dtype}", format_quantity(rate, "FLOP/s")) for dtype, rate in limits.flops.items()]
    rates.append(("memory bandwidth", format_quantity(limits.memory_bandwidth, "B/s")))
    print_table(("limit", "measured"), rates)
    print()
    shapes = [(each.preset, each.task, f"{each.rows} x {each.length}", each.dtype) for each in results]
    speeds = [(f"{each.tokens_per_second:,.0f}", f"{each.utilisation:.1%}") for each in results]
    rows = [(*shape, *speed) for shape, speed in zip(shapes, speeds, strict=True)]
    print_table(("preset", "task", "tokens", "dtype", "tokens/s", "MFU"), rows)


def _preset_config(name: str, requested: HardwareConfig) -> RunConfig:
    """Return a preset on the requested hardware, in a dtype that it can be trained in."""
    hardware = dataclasses.replace(requested, dtype="auto") if requested.dtype in INFERENCE_ONLY_DTYPES else requested
    config = dataclasses.replace(build_run_config(name), hardware=hardware)
    if config.model.purpose != "continues texts":
        raise UsageError(f"{name} is a model that {config.model.purpose}, not one that continues texts")
    return config
