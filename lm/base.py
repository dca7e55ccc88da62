"""The base of a run that has only adapters: the checkpoint whose weights they belong to, and where it is.

RUN/base is one line: where that checkpoint is, as seen from RUN; a person may change it where the base has moved. What
the base's weights were is said by their sum in the config, so that no others can be taken for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from lm import files, run_folder
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError
from lm.run_folder import BASE, CHECKPOINTS, MODEL

_SHOWN = 200
"""Characters of a place that are shown, which may be anything."""


def refer(run: Path, base: Path) -> None:
    """Write down in the folder of a run which checkpoint its adapters belong to."""
    place = os.path.relpath(base.resolve(), run.resolve())
    files.replace_text(run / BASE, place + "\n")


def adapting(config: RunConfig, base: Path) -> RunConfig:
    """The settings of a run whose adapters belong to the weights of a checkpoint."""
    return dataclasses.replace(config, base_sha256=files.sha256(base / MODEL))


def refuse_adapted(base: Path) -> None:
    """UsageError for a checkpoint that has only adapters itself."""
    if run_folder.load_config(base).lora:
        raise UsageError(f"{base}: has adapters itself; make a plain run of it first: lm merge {base} -o RUN (--from)")


def named_base(checkpoint: Path) -> str | None:
    """Where the base of a checkpoint is, as its run says, seen from here; None if it does not."""
    owner = _owner(checkpoint)
    place = run_folder.pointed_to(owner, "base")
    return os.path.normpath(owner / place) if place else None


def find_base(checkpoint: Path) -> Path:
    """The base of a checkpoint with adapters, wherever its run says that it is now; InputError if it is not there."""
    owner = _owner(checkpoint)
    place = run_folder.pointed_to(owner, "base")
    if not place:
        raise InputError(f"{owner / BASE}: missing; write into it where the run is that {checkpoint} adapts")
    with contextlib.suppress(OSError):  # a name that none can be
        if run_folder.is_checkpoint(owner / place):
            return owner / place
    gone = f"there is no checkpoint at {place[:_SHOWN]}, the base of this run"
    raise InputError(f"{owner / BASE}: {gone}; put it back, or write into this file where it is now")


def base_weights(checkpoint: Path, config: RunConfig) -> Path:
    """The file of the weights that the adapters of a checkpoint belong to; InputError if it is gone or has changed."""
    path = find_base(checkpoint) / MODEL
    if files.sha256(path) != config.base_sha256:
        advice = f"put those back, or write into {_owner(checkpoint) / BASE} where they are"
        raise InputError(f"{path}: not the weights that {checkpoint} adapts (another sha256); {advice}")
    return path


def _owner(checkpoint: Path) -> Path:
    """Whose file names the base: the run's, or for a checkpoint that was taken out of one, its own."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
