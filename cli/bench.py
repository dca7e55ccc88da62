"""`lm bench`: training and generation speed of this machine, compared with its limits and with Hugging Face."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli import completion
from cli.options import Options, with_settings
from lm.config.hardware import INFERENCE_ONLY_DTYPES, HardwareConfig
from lm.config.presets import PRESETS, build_run_config, is_preset
from lm.config.run_config import RunConfig
from lm.config.settings import did_you_mean
from lm.errors import UsageError, missing_packages

if TYPE_CHECKING:
    from lm.benchmark.hardware_limits import HardwareLimits
    from lm.benchmark.speed import Measurement

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
    float, typer.Option("--seconds", min=0, metavar="SECONDS", help="Approximate time of each measurement.")
]
_BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, metavar="N", help="Sequences per training step. [default: the preset's]"),
]
_Compare = Annotated[
    bool | None,
    typer.Option("--compare/--no-compare", help="Compare with Hugging Face's GPT-2. [default: if installed]"),
]


@with_settings(
    {"hardware": HardwareConfig},
    "device dtype threads",
)
def bench(
    presets: _Presets = None,
    *,
    seconds: _Seconds = 2.0,
    batch_size: _BatchSize = None,
    compare: _Compare = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: machine, limits, measurements.")] = False,
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

    The baseline is transformers' GPT-2 with the same layers, width, heads, context and vocabulary; its block is always
    GPT-2's. Measurements are interleaved; the ratio is the median over rounds.

    Examples:
      lm bench
      lm bench gpt2 --dtype bfloat16 --seconds 10
      lm bench small --dtype int8
      lm bench nanogpt-cpu --threads 1 --no-compare --json
    """
    if not math.isfinite(seconds):
        raise UsageError(f"--seconds must be a finite number, not {seconds}")
    inference_hardware = options.build(HardwareConfig)
    configs = [_preset_config(name, inference_hardware) for name in presets or _DEFAULT_PRESETS]
    from cli import bench_report
    from lm.benchmark.hugging_face import is_installed

    if compare and not is_installed():
        raise missing_packages("comparing with Hugging Face", "transformers")
    comparing = is_installed() if compare is None else compare
    limits, measurements = _measure(configs, inference_hardware, seconds=seconds, compare=comparing, rows=batch_size)
    if as_json:
        bench_report.print_json(inference_hardware, limits, measurements, comparing=comparing)
    else:
        bench_report.print_tables(inference_hardware, limits, measurements, comparing=comparing)
        bench_report.print_notes(configs, measurements, comparing=comparing, compare_requested=compare is not False)


def _measure(
    configs: Sequence[RunConfig], inference_hardware: HardwareConfig, *, seconds: float, compare: bool, rows: int | None
) -> tuple[HardwareLimits, list[Measurement]]:
    """Measure the limits of the machine and each model."""
    from cli.bench_report import show_progress
    from lm.benchmark.hardware_limits import measure_hardware_limits
    from lm.benchmark.speed import MEASUREMENTS_PER_MODEL, measure_speed

    with show_progress(1 + MEASUREMENTS_PER_MODEL * len(configs)) as progress:
        progress("the limits of the machine")
        limits = measure_hardware_limits(inference_hardware)
        measurements = [
            measurement
            for config in configs
            for measurement in measure_speed(
                config,
                limits,
                seconds=seconds,
                generating=inference_hardware,
                compare=compare,
                rows=rows,
                progress=progress,
            )
        ]
    return limits, measurements


def _preset_config(name: str, requested: HardwareConfig) -> RunConfig:
    """Return a preset on the requested hardware, in a dtype that it can be trained in."""
    if not is_preset(name):
        raise UsageError(f"no preset {name!r}{did_you_mean(name, PRESETS)}; `lm info` lists presets")
    hardware = dataclasses.replace(requested, dtype="auto") if requested.dtype in INFERENCE_ONLY_DTYPES else requested
    config = dataclasses.replace(build_run_config(name), hardware=hardware)
    if config.model.purpose != "continues texts":
        raise UsageError(
            f"{name} is a model that {config.model.purpose}; lm bench measures models that continue texts, such as "
            "small"
        )
    return config
