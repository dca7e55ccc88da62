"""A run folder on disk: checkpoints complete in themselves, written atomically, verified when read. No pickle.

RUN/config.json                  what the run is, with a format_version
RUN/metrics.jsonl                what was learned; RUN/timings.jsonl: how fast
RUN/last, RUN/best               one line each: the name of a checkpoint
RUN/checkpoints/step-N/          config.json  tokenizer.json  model.safetensors  optimizer.safetensors  state.json
                                 manifest.json: sha256 of each, written last
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lm.config import RunConfig
from lm.data.tokenizer import Tokenizer
from lm.errors import InputError, UsageError
from lm.hardware import Hardware
from lm.model.transformer import DecoderOnly, EncoderDecoder, build_model

CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE = (
    "config.json", "tokenizer.json", "model.safetensors", "optimizer.safetensors", "state.json",
)  # fmt: skip
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TrainingState:
    """How far a run has come.

    Attributes:
        step: optimizer steps taken.
        samples: windows consumed; with the seed, this is the place in the data.
        tokens: tokens trained on.
        flops: arithmetic spent on them.
        seconds: time spent training, evaluations aside.
        best_loss: lowest validation loss, nats per token.
        best_step: where that was.
        finished: whether all the planned steps are done.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    finished: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be used, and where it came from."""

    model: DecoderOnly | EncoderDecoder
    tokenizer: Tokenizer
    config: RunConfig
    folder: Path


def save_checkpoint(
    run: Path,
    *,
    config: RunConfig,
    tokenizer: Tokenizer,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: TrainingState,
    is_best: bool,
) -> Path:
    """Write `RUN/checkpoints/step-N` so that it is there whole or not at all; returns its folder."""
    folder = run / "checkpoints" / f"step-{state.step}"
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_json(unfinished / CONFIG, config.to_dict())
    tokenizer.save(unfinished / TOKENIZER)
    save_file(dict(model), unfinished / MODEL)
    save_file(dict(optimizer), unfinished / OPTIMIZER)
    write_json(unfinished / STATE, dataclasses.asdict(state))
    sums = {path.name: _sha256(path) for path in sorted(unfinished.iterdir())}
    for name in sums:
        _sync(unfinished / name)
    write_json(unfinished / MANIFEST, {"sha256": sums})
    _sync(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    _sync(folder.parent)
    for pointer in ("last", "best") if is_best else ("last",):
        _replace_text(run / pointer, folder.name + "\n")
    return folder


def remove_old(run: Path, *, keep: int) -> None:
    """Remove all checkpoints but the latest `keep` and those that `best` and `last` name; none at all for 0."""
    named = {(run / pointer).read_text().strip() for pointer in ("best", "last") if (run / pointer).is_file()}
    for folder in _complete(run)[:-keep] if keep else []:
        if folder.name not in named:
            (folder / MANIFEST).unlink()  # first, so that half a checkpoint is never taken for one
            shutil.rmtree(folder)


def _complete(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [manifest.parent for manifest in run.glob(f"checkpoints/step-*/{MANIFEST}")]
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")))


def find_checkpoint(path: Path, *, which: str = "best") -> Path:
    """The checkpoint that a path means: itself, or the best or last one of a run.

    Args:
        path: a run folder or a checkpoint folder.
        which: "best" (the last one where no best is known) or "last".
    """
    if (path / MANIFEST).is_file() and (path / MODEL).is_file():
        return path
    if not path.exists():
        raise InputError(f"{path}: no such run")
    for pointer in (which, "last"):
        if (path / pointer).is_file():
            folder = path / "checkpoints" / (path / pointer).read_text().strip()
            if (folder / MANIFEST).is_file():
                return folder
    if complete := _complete(path):
        return complete[-1]
    if (path / CONFIG).is_file() and (path / "checkpoints").is_dir():
        raise InputError(f"{path}: this run has no checkpoint yet")
    raise InputError(f"{path}: not a run (a folder that `lm train` made, with checkpoints/ in it)")


def load_config(folder: Path) -> RunConfig:
    """The configuration in a run or checkpoint folder."""
    path = folder / CONFIG
    try:
        return RunConfig.from_dict(read_json(path), where=str(path))
    except UsageError as error:
        raise InputError(str(error)) from error


def load_model(path: Path, hardware: Hardware, *, which: str = "best") -> LoadedModel:
    """The model of a run or checkpoint, in eval mode, on the device and in the type that `hardware` says.

    Raises:
        InputError: there is no checkpoint, or a file of it is missing or damaged.
    """
    folder = find_checkpoint(path, which=which)
    verify(folder)
    config = load_config(folder)
    with torch.device("meta"):
        model = build_model(config.model)
    model.load_state_dict(load_file(folder / MODEL), assign=True)
    model.to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval().requires_grad_(False)
    return LoadedModel(model, Tokenizer.load(folder / TOKENIZER), config, folder)


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a run's best checkpoint, or of a checkpoint, as they were saved."""
    folder = find_checkpoint(path)
    verify(folder)
    return load_file(folder / MODEL)


def load_state(folder: Path) -> TrainingState:
    """How far the run was at a checkpoint."""
    return TrainingState(**read_json(folder / STATE))


def verify(folder: Path) -> None:
    """Raise InputError unless every file of a checkpoint is what was written."""
    for name, expected in read_json(folder / MANIFEST)["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing; the checkpoint is damaged, use another one")
        if _sha256(path) != expected:
            raise InputError(
                f"{path}: differs from its sha256 in {MANIFEST}; the checkpoint is damaged, use another one"
            )


def read_json(path: Path) -> Any:  # noqa: ANN401 (whatever the file holds)
    """The contents of a JSON file; InputError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file and wait until it is on the disk."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(path)


def _replace_text(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    _sync(fresh)
    fresh.replace(path)
    _sync(path.parent)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
