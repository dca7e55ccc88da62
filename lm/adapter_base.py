"""Base weights of adapters (LoRA): the checkpoint that a run's adapters belong to.

RUN/base.safetensors is a hard link to (or copy of) the base weights, so that the adapters stay usable if the base is
trained further or removed. The config has their SHA-256, so that no others are used. RUN/base is one line, only for
messages: the path of the base checkpoint relative to RUN.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from lm import files, run_folder
from lm.config.run_config import RunConfig
from lm.errors import InputError, UsageError
from lm.run_folder import BASE, BASE_WEIGHTS, CHECKPOINTS, MODEL


def link_base(run: Path, base: Path) -> None:
    """Link the base weights into the folder of a run with adapters, and write the path of the base checkpoint."""
    files.link_or_copy(base / MODEL, run / BASE_WEIGHTS)
    files.replace_text(run / BASE, Path(os.path.relpath(base.resolve(), run.resolve())).as_posix() + "\n")


def with_base_hash(config: RunConfig, base: Path) -> RunConfig:
    """Return the config of a run whose adapters belong to a checkpoint."""
    return dataclasses.replace(config, base_sha256=files.sha256(base / MODEL))


def refuse_adapters(base: Path) -> None:
    """Raise UsageError if a checkpoint has adapters itself."""
    if run_folder.load_config(base).lora:
        raise UsageError(f"{base}: has adapters itself; merge them into a plain run first (lm merge)")


def read_base_path(checkpoint: Path) -> str | None:
    """Return the path of the base of a checkpoint as written in its run; None without one."""
    owner = _base_folder(checkpoint)
    base = run_folder.read_pointer(owner, "base")
    return os.path.normpath(owner / base) if base else None


def find_base_weights(checkpoint: Path, config: RunConfig) -> Path:
    """Return the file of the base weights of adapters; InputError if it is missing or has changed."""
    path = _base_folder(checkpoint) / BASE_WEIGHTS
    if not path.is_file():
        raise InputError(f"{path}: missing; {checkpoint} adapts these weights")
    if files.sha256(path) != config.base_sha256:
        raise InputError(f"{path}: not the weights that {checkpoint} adapts (another sha256)")
    return path


def _base_folder(checkpoint: Path) -> Path:
    """Return the folder with the base files: the run, or a checkpoint that was copied out of one."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
