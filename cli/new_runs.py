"""Runs that a command has just trained or imported, or gets from the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from cli.console.messages import print_labelled
from cli.flags.loading import import_torch
from lm.config.hardware import HardwareConfig


def resolve_hub_name(run: Path) -> Path:
    """Return the run of a name: a model of the Hugging Face Hub (`hf:ORG/NAME`) is downloaded and imported once."""
    if not str(run).startswith("hf:"):
        return run
    import_torch()
    from lm.interop.hugging_face.hub import import_from_hub, parse_hub_name

    return import_from_hub(parse_hub_name(str(run)), on_import=record_decoding_dtype)


def record_decoding_dtype(run: Path, hardware: HardwareConfig | None = None) -> None:
    """Measure in which dtype a new run decodes fastest, record it, and print it."""
    from lm.benchmark.dtypes import measure_and_record_dtype

    if (chosen := measure_and_record_dtype(run, hardware or HardwareConfig())) is not None:
        print_labelled("decoding", f"{chosen} (--dtype float32 is exact)")
