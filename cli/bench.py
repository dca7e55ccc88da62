"""`lm bench`: how fast this machine trains and generates, beside its limits and beside Hugging Face."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console.escapes import json_line
from cli.flags import completion
from cli.flags.options import Given, takes
from lm.config.hardware import HardwareConfig
from lm.config.options import suggestion
from lm.config.presets import PRESETS, is_preset, resolve
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError

if TYPE_CHECKING:
    from lm.benchmark.limits import Limits
    from lm.benchmark.measuring import Measurement

_DEFAULT = ("tiny", "small")

_Presets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRESET]...",
        help=f"Presets of models that continue texts [default: {' '.join(_DEFAULT)}].",
        show_default=False,
        autocompletion=completion.presets,
    ),
]
_Seconds = Annotated[
    float, typer.Option("--seconds", min=0, metavar="X", help="About how long to measure each figure, on each side.")
]
_BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        metavar="N",
        help="Sequences in a training step [default: the preset's, worked out from as many as there is time for].",
        show_default=False,
    ),
]
_Compare = Annotated[
    bool | None,
    typer.Option(
        "--compare/--no-compare",
        help="Let Hugging Face's GPT-2 of the same shape do the same [default: if transformers is installed].",
        show_default=False,
    ),
]


@takes({"hardware": HardwareConfig})
def bench(
    presets: _Presets = None,
    *,
    seconds: _Seconds = 2.0,
    batch_size: _BatchSize = None,
    compare: _Compare = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the machine, its limits, and each figure with its median time.")
    ] = False,
    given: Given,
) -> None:
    """Measure how fast this machine trains and generates.

    First the limits: products of large matrices, and reading memory. Then for each preset, with random weights and
    random tokens: whole optimizer steps as lm train takes them, in the arithmetic that it chooses here, reading a
    prompt of half the context, and generating from it as lm generate does, greedily, one text and 16 side by side.

    MFU (model-FLOPs utilisation) is the share of the matrix product's speed, in the same arithmetic and measured just
    before, that the arithmetic of the model came to: for a token of training 6 for each parameter of its matrices, the
    output layer among them, and 6 · layers · d_model · context for attention; a third of that without a backward pass.

    Hugging Face is its GPT-2 with the same layers, width, heads, context and vocabulary, but always GPT-2's block. Both
    sides take turns, and the ratio is the median of the rounds.

    Examples:
      lm bench
      lm bench gpt2 --dtype bfloat16 --seconds 10
      lm bench nanogpt-cpu --threads 1 --no-compare --json
    """
    if not math.isfinite(seconds):
        raise UsageError(f"--seconds must be a finite number, not {seconds}")
    configs = [_config(name, given) for name in presets or _DEFAULT]
    from lm.benchmark.hugging_face import is_installed
    from lm.benchmark.limits import measure_limits
    from lm.benchmark.measuring import TASKS, measure

    if compare and not is_installed():
        raise InputError("comparing with Hugging Face needs its package: pip install transformers")
    comparing = is_installed() if compare is None else compare
    with _progress(1 + TASKS * len(configs)) as progress:
        progress("the limits of the machine")
        limits = measure_limits(configs[0].hardware)
        found = [
            measurement
            for config in configs
            for measurement in measure(
                config, limits, seconds=seconds, compare=comparing, rows=batch_size, progress=progress
            )
        ]
    machine = _machine(configs[0].hardware, comparing=comparing)
    if as_json:
        figures = [_figures(measurement) for measurement in found]
        print(json_line({**machine, "limits": vars(limits), "measurements": figures}))
        return
    _print(machine, limits, found, comparing=comparing)
    _notes(configs, found, wanted=compare is not False, comparing=comparing)


def _config(name: str, given: Given) -> RunConfig:
    """A preset on the hardware asked for."""
    if not is_preset(name):
        raise UsageError(f"no preset {name!r}{suggestion(name, PRESETS)}; `lm info` lists presets")
    config = resolve(name, given)
    if config.model.is_encoder_decoder:
        raise UsageError(f"{name} is an encoder-decoder; lm bench measures models that continue texts, such as small")
    return config


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Says on stderr what is measured: a bar on a terminal, a line each elsewhere."""
    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with progress(*columns) as bar:
        task, begun = bar.add_task("", total=total), 0

        def show(what: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=what)
            begun += 1
            if bar.disable:
                note(f"measuring {what}")

        yield show


def _machine(config: HardwareConfig, *, comparing: bool) -> dict[str, Any]:
    """What was measured on, and with."""
    from importlib.metadata import version

    import torch

    from lm.hardware import inference_hardware

    found = inference_hardware(config)
    return {
        "device": found.device,
        "device_name": torch.cuda.get_device_name() if found.device == "cuda" else None,
        "threads": found.threads,
        "torch": torch.__version__,
        "transformers": version("transformers") if comparing else None,
    }


def _figures(measurement: Measurement) -> dict[str, Any]:
    timings = measurement.timings
    theirs = {
        "seconds": timings.their_seconds,
        "tokens_per_second": measurement.their_tokens_per_second,
        "ratio": timings.ratio,
    }
    return {
        "preset": measurement.preset,
        "task": measurement.task,
        "rows": measurement.rows,
        "length": measurement.length,
        "timed_rows": measurement.timed_rows,
        "dtype": measurement.hardware.dtype,
        "threads": measurement.hardware.threads,
        "optimizer_dtype": measurement.hardware.optimizer_dtype if measurement.task == "training" else None,
        "rounds": timings.rounds,
        "tokens": measurement.tokens,
        "seconds": timings.seconds,
        "tokens_per_second": measurement.tokens_per_second,
        "flops": measurement.flops,
        "utilisation": measurement.utilisation,
        "peak_bytes": measurement.peak_bytes,
        "hugging_face": None if timings.their_seconds is None else theirs,
    }


def _print(machine: dict[str, Any], limits: Limits, found: Sequence[Measurement], *, comparing: bool) -> None:
    from cli.console.numbers import quantity, threads
    from cli.console.tables import table

    packages = [f"{name} {machine[name]}" for name in ("torch", "transformers") if machine[name]]
    print(", ".join([machine["device_name"] or machine["device"], threads(machine["threads"]), *packages]))
    print()
    products = [
        (f"products of {limits.matrix_size:,}³, {dtype}", quantity(rate, "FLOP/s"))
        for dtype, rate in limits.flops.items()
    ]
    table(("limit", "measured"), [*products, ("reading memory", quantity(limits.memory_bandwidth, "B/s"))])
    print()
    columns = ("preset", "task", "tokens", "arithmetic", "tokens/s", "MFU", "Hugging Face", "ratio")
    table(columns if comparing else columns[:-2], [_row(measurement) for measurement in found])


def _row(measurement: Measurement) -> tuple[str, ...]:
    ours = (
        measurement.preset,
        measurement.task,
        f"{measurement.rows} x {measurement.length}",
        measurement.hardware.dtype,
        f"{measurement.tokens_per_second:,.0f}",
        f"{measurement.utilisation:.1%}",
    )
    theirs, ratio = measurement.their_tokens_per_second, measurement.timings.ratio
    return ours if theirs is None else (*ours, f"{theirs:,.0f}", f"{ratio:.2f}")


def _notes(configs: Sequence[RunConfig], found: Sequence[Measurement], *, wanted: bool, comparing: bool) -> None:
    """How the table is to be read, on stderr."""
    from cli.console.messages import note
    from cli.console.numbers import size, threads

    note("MFU is against the product of the same arithmetic above, measured in this process.")
    if comparing:
        note("Hugging Face is GPT-2's block in the same shape, in turns with ours; a ratio above 1 is in our favour.")
    elif wanted:
        note("No comparison with Hugging Face: transformers is not installed (pip install transformers).")
    steps = [measurement for measurement in found if measurement.task == "training"]
    for config, step in zip(configs, steps, strict=True):
        chosen = f"{step.preset}: lm train takes {step.hardware.dtype} and {threads(step.hardware.threads)} here"
        muon = f", {step.hardware.optimizer_dtype} in Muon" if config.training.optimizer == "muon" else ""
        note(f"{chosen}{muon}: what was fastest just before.")
        if step.timed_rows is not None and step.timed_rows < step.rows:
            worked_out = f"a training step of {step.rows} sequences is worked out from steps of {step.timed_rows}"
            note(f"{step.preset}: {worked_out}, the optimizer's part of them counted once.")
        if step.peak_bytes is not None:
            note(f"{step.preset}: a training step takes {size(step.peak_bytes)} of the GPU's memory at most.")
