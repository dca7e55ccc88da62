"""Export a run to another system."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from safetensors import SafetensorError

from lm.config.export import EXPORTERS, ExportConfig
from lm.errors import InputError


def export_run(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, atomically.

    Args:
        out: a folder, or for gguf a file, to be created.

    Returns:
        What to report: "model"; for gguf also "tokens"; for peft "lora".

    Raises:
        InputError: the run is damaged, `out` exists or cannot be written, or a package is not installed.
        UsageError: the system has no such model; the message names the fields that decide.
    """
    module, _, function = EXPORTERS[config.to].function.partition(":")
    try:
        return cast("Mapping[str, str]", getattr(importlib.import_module(module), function)(run, out, config))
    except SafetensorError as error:
        raise InputError(f"{out}: cannot be written ({error})") from None
