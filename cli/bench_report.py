"""The report of `lm bench`: machine, limits, training and generation speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from cli.console.progress import create_progress
from cli.console.tables import print_table
from cli.console.text import format_bytes, format_json_line, format_quantity, format_threads, print_note
from lm.benchmark.hardware_limits import HardwareLimits
from lm.benchmark.speed import Measurement
from lm.config.hardware import HardwareConfig
from lm.config.run_config import RunConfig
from lm.hardware import select_inference_hardware


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being measured: a bar on a terminal, else a line each."""
    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with create_progress(*columns) as bar:
        task, n_started = bar.add_task("", total=total), 0

        def start(name: str) -> None:
            nonlocal n_started
            bar.update(task, completed=n_started, description=name)
            n_started += 1
            if bar.disable:
                print_note(f"measuring {name}")

        yield start


def print_json(
    hardware: HardwareConfig, limits: HardwareLimits, results: Sequence[Measurement], *, comparing: bool
) -> None:
    """Print one object: the machine, its `limits`, and its `measurements`."""
    measurements = [_measurement_values(measurement) for measurement in results]
    machine = _describe_machine(hardware, comparing=comparing)
    print(format_json_line({**machine, "limits": vars(limits), "measurements": measurements}))


def print_tables(
    hardware: HardwareConfig, limits: HardwareLimits, results: Sequence[Measurement], *, comparing: bool
) -> None:
    """Print the machine, a table of its limits, and a table with a row per measurement."""
    machine = _describe_machine(hardware, comparing=comparing)
    packages = [f"{name} {machine[name]}" for name in ("torch", "transformers") if machine[name]]
    print(", ".join([machine["device_name"] or machine["device"], format_threads(machine["threads"]), *packages]))
    print()
    matmuls = [
        (f"matmul of {limits.matrix_size:,}³, {dtype}", format_quantity(rate, "FLOP/s"))
        for dtype, rate in limits.flops.items()
    ]
    print_table(
        ("limit", "measured"), [*matmuls, ("memory bandwidth", format_quantity(limits.memory_bandwidth, "B/s"))]
    )
    print()
    columns = ("preset", "task", "tokens", "dtype", "tokens/s", "MFU", "Hugging Face", "ratio")
    print_table(columns if comparing else columns[:-2], [_row(measurement) for measurement in results])


def _row(measurement: Measurement) -> tuple[str, ...]:
    cells = (
        measurement.preset,
        measurement.task,
        f"{measurement.rows} x {measurement.length}",
        measurement.hardware.dtype,
        f"{measurement.tokens_per_second:,.0f}",
        f"{measurement.utilisation:.1%}",
    )
    baseline = measurement.baseline_tokens_per_second
    return cells if baseline is None else (*cells, f"{baseline:,.0f}", f"{measurement.timings.ratio:.2f}")


def print_notes(
    configs: Sequence[RunConfig], results: Sequence[Measurement], *, comparing: bool, compare_requested: bool
) -> None:
    """Explain the tables on stderr; `comparing` says that transformers was measured too."""
    print_note("MFU is relative to the matmul in the same dtype above, measured in this process.")
    if comparing:
        print_note(
            "Hugging Face is transformers' GPT-2 in the same shape, interleaved; above a ratio of 1, lm is faster."
        )
        if any(measurement.hardware.dtype == "int8" for measurement in results):
            print_note("Where lm has int8 weights, transformers has float32.")
    elif compare_requested:
        print_note("No comparison with Hugging Face: transformers is not installed (pip install transformers).")
    steps = [measurement for measurement in results if measurement.task == "training"]
    for config, step in zip(configs, steps, strict=True):
        chosen = f"{step.preset}: lm train takes {step.hardware.dtype} and {format_threads(step.hardware.threads)} here"
        muon = f", {step.hardware.optimizer_dtype} in Muon" if config.training.optimizer == "muon" else ""
        print_note(f"{chosen}{muon}: the fastest in the measurement above.")
        if step.timed_rows is not None and step.timed_rows < step.rows:
            estimated = f"a training step of {step.rows} sequences is computed from steps of {step.timed_rows}"
            print_note(f"{step.preset}: {estimated}, the optimizer's part of them counted once.")
        if step.peak_bytes is not None:
            print_note(f"{step.preset}: the peak GPU memory of a training step is {format_bytes(step.peak_bytes)}.")


def _describe_machine(config: HardwareConfig, *, comparing: bool) -> dict[str, Any]:
    """Return the measured machine, and the versions of the software."""
    hardware = select_inference_hardware(config)
    return {
        "device": hardware.device,
        "device_name": torch.cuda.get_device_name() if hardware.device == "cuda" else None,
        "threads": hardware.threads,
        "torch": torch.__version__,
        "transformers": version("transformers") if comparing else None,
    }


def _measurement_values(measurement: Measurement) -> dict[str, Any]:
    timings = measurement.timings
    baseline = {
        "seconds": timings.baseline_seconds,
        "tokens_per_second": measurement.baseline_tokens_per_second,
        "ratio": timings.ratio,
    }
    return {
        "preset": measurement.preset,
        "task": measurement.task,
        "rows": measurement.rows,
        "length": measurement.length,
        "timed_rows": measurement.timed_rows,
        "dtype": measurement.hardware.dtype,
        "matmul_dtype": measurement.hardware.matmul_dtype,
        "threads": measurement.hardware.threads,
        "optimizer_dtype": measurement.hardware.optimizer_dtype if measurement.task == "training" else None,
        "rounds": timings.rounds,
        "tokens": measurement.tokens,
        "seconds": timings.seconds,
        "tokens_per_second": measurement.tokens_per_second,
        "flops": measurement.flops,
        "utilisation": measurement.utilisation,
        "peak_bytes": measurement.peak_bytes,
        "hugging_face": None if timings.baseline_seconds is None else baseline,
    }
