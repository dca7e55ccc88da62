"""Base weights of adapters (LoRA): the checkpoint that a run's adapters belong to.

RUN/base.safetensors is a hard link to (or copy of) the base weights, so that the adapters stay usable if the base is
trained further or removed. RUN/base is one line: the path of the base checkpoint relative to RUN; runs of earlier
versions have only that, and users may edit it. The config has the SHA-256 of the weights, so that no others are used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path, PurePath

from lm import files, run_folder
from lm.config.run_config import RunConfig
from lm.errors import InputError, UsageError
from lm.run_folder import BASE, BASE_WEIGHTS, CHECKPOINTS, MODEL

_MAX_SHOWN = 200
"""Maximum characters of a path in messages."""


def link_base(run: Path, base: Path) -> None:
    """Link the base weights into the folder of a run with adapters, and write the path of the base checkpoint."""
    link_base_weights(run, base / MODEL)
    files.replace_text(run / BASE, relative_path(run.resolve(), base.resolve()) + "\n")


def link_base_weights(run: Path, weights: Path) -> Path:
    """Link or copy a weights file into the folder of a run, unless it is there; returns its path."""
    own = run / BASE_WEIGHTS
    if not (own.is_file() and own.samefile(weights)):
        files.link_or_copy(weights, own)
    return own


def relative_path(run: PurePath, base: PurePath) -> str:
    """Return the relative POSIX path from `run` to `base`; absolute if it is on another drive."""
    try:
        return type(base)(os.path.relpath(base, run)).as_posix()
    except ValueError:
        return base.as_posix()


def with_base_hash(config: RunConfig, base: Path) -> RunConfig:
    """Return the config of a run whose adapters belong to a checkpoint."""
    return dataclasses.replace(config, base_sha256=files.sha256(base / MODEL))


def refuse_adapters(base: Path) -> None:
    """Raise UsageError if a checkpoint has adapters itself."""
    if run_folder.load_config(base).lora:
        raise UsageError(
            f"{base}: has adapters itself; merge them into a plain run first (lm merge)", settings=["from"]
        )


def read_base_path(checkpoint: Path) -> str | None:
    """Return the path of the base of a checkpoint as written in its run; None without one."""
    owner = _base_folder(checkpoint)
    base = run_folder.read_pointer(owner, "base")
    return os.path.normpath(owner / base) if base else None


def find_base(checkpoint: Path) -> Path:
    """Return the base checkpoint of adapters; InputError if it is missing."""
    owner = _base_folder(checkpoint)
    pointer = run_folder.read_pointer(owner, "base")
    if not pointer:
        raise InputError(f"{owner / BASE}: missing; write into it where the run is that {checkpoint} adapts")
    with contextlib.suppress(OSError):  # an impossible name
        if run_folder.is_checkpoint(owner / pointer):
            return owner / pointer
    gone = f"there is no checkpoint at {pointer[:_MAX_SHOWN]}, the base of this run"
    raise InputError(f"{owner / BASE}: {gone}; put it back, or write into this file where it is now")


def find_base_weights(checkpoint: Path, config: RunConfig) -> Path:
    """Return the file of the base weights of adapters; InputError if it is missing or has changed."""
    own = linked_base_weights(checkpoint)
    if own is not None and files.sha256(own) == config.base_sha256:
        return own
    line = _base_folder(checkpoint) / BASE
    try:
        path = find_base(checkpoint) / MODEL
    except InputError:
        if own is None:
            raise
        path = own
    if path is own or files.sha256(path) != config.base_sha256:
        advice = f"put those back, or write into {line} where they are"
        raise InputError(f"{path}: not the weights that {checkpoint} adapts (another sha256); {advice}")
    return path


def linked_base_weights(checkpoint: Path) -> Path | None:
    """Return the base weights in the run folder; None for runs of earlier versions."""
    own = _base_folder(checkpoint) / BASE_WEIGHTS
    return own if own.is_file() else None


def _base_folder(checkpoint: Path) -> Path:
    """Return the folder with the base files: the run, or a checkpoint that was copied out of one."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
