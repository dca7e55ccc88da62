"""Export a run to another system."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from lm.config.export import EXPORTERS, ExportConfig


def export_run(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, atomically.

    Args:
        out: a folder, or for gguf a file, to be created.

    Returns:
        What to report: "model"; for gguf also "words"; for peft "lora".

    Raises:
        InputError: the run is damaged, `out` exists, or a package is not installed.
        UsageError: the system has no such model; the message names the fields that decide.
    """
    module, _, function = EXPORTERS[config.to].function.partition(":")
    return cast("Mapping[str, str]", getattr(importlib.import_module(module), function)(run, out, config))
