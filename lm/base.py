"""The base of a run that has only adapters: the checkpoint whose weights they belong to.

RUN/base.safetensors is a hard link to those weights, or a copy where the file system has no links, so that the adapters
can be used when the base is trained further or removed. RUN/base is one line: where the base's checkpoint is, as seen
from RUN. Runs of earlier versions have only that; a person may change it where the base has moved. The config has the
SHA-256 of the weights, so that no others can be taken for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path, PurePath

from lm import files, run_folder
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError
from lm.run_folder import BASE, BASE_WEIGHTS, CHECKPOINTS, MODEL

_SHOWN = 200
"""Characters of a place that are shown, which may be anything."""


def refer(run: Path, base: Path) -> None:
    """Keep the weights of a checkpoint in the folder of a run whose adapters belong to them, and note where it is."""
    keep_weights(run, base / MODEL)
    files.replace_text(run / BASE, seen_from(run.resolve(), base.resolve()) + "\n")


def keep_weights(run: Path, weights: Path) -> Path:
    """Keep a file of weights in the folder of a run, unless it is there already; returns its place there."""
    own = run / BASE_WEIGHTS
    if not (own.is_file() and own.samefile(weights)):
        files.link_or_copy(weights, own)
    return own


def seen_from(run: PurePath, base: PurePath) -> str:
    """The path of a folder relative to another, with slashes on every system; absolute where it is on another drive."""
    try:
        return type(base)(os.path.relpath(base, run)).as_posix()
    except ValueError:
        return base.as_posix()


def adapting(config: RunConfig, base: Path) -> RunConfig:
    """The settings of a run whose adapters belong to the weights of a checkpoint."""
    return dataclasses.replace(config, base_sha256=files.sha256(base / MODEL))


def refuse_adapted(base: Path) -> None:
    """UsageError for a checkpoint that has only adapters itself."""
    if run_folder.load_config(base).lora:
        raise UsageError(
            f"{base}: has adapters itself; merge them into a plain run first (lm merge)", settings=["from"]
        )


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
    own = own_weights(checkpoint)
    if own is not None and files.sha256(own) == config.base_sha256:
        return own
    line = _owner(checkpoint) / BASE
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


def own_weights(checkpoint: Path) -> Path | None:
    """The weights of the base that are kept with a run; None for a run of an earlier version."""
    own = _owner(checkpoint) / BASE_WEIGHTS
    return own if own.is_file() else None


def _owner(checkpoint: Path) -> Path:
    """Whose file names the base: the run's, or for a checkpoint that was taken out of one, its own."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
