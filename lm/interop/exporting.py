"""A run written for another system, and what there is to say of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from lm.config.export import EXPORTERS, ExportConfig


def export_run(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Write a run's best checkpoint, or a checkpoint, as another system loads it; it is there whole or not at all.

    Args:
        run: the run or checkpoint.
        out: a folder, or for gguf a file, to be made.
        config: the system, and the type of the numbers.

    Returns:
        What it was written as and what decided that, by what is said: "model", for gguf "words" too; for peft "lora".

    Raises:
        InputError: the run is damaged, there is something at `out`, or a package is not installed.
        UsageError: the system has nothing like the model; the message names the fields that decide.
    """
    module, _, function = EXPORTERS[config.to].function.partition(":")
    return cast("Mapping[str, str]", getattr(importlib.import_module(module), function)(run, out, config))
