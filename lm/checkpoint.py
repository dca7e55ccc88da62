"""A run folder on disk: checkpoints complete in themselves, written atomically, verified when read. No pickle.

RUN/config.json                  what the run is, with a format_version
RUN/metrics.jsonl                what was learned; RUN/timings.jsonl: how fast
RUN/last, RUN/best               one line each: the name of a checkpoint
RUN/checkpoints/step-N/          config.json  tokenizer.json  model.safetensors  optimizer.safetensors  state.json
                                 manifest.json: sha256 of each, written last
                                 source_tokenizer.json: only of an encoder-decoder with separate vocabularies
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lm import files, options
from lm.config import RunConfig
from lm.data.tokenizer import Tokenizer
from lm.errors import InputError, UsageError
from lm.hardware import Hardware
from lm.model.transformer import DecoderOnly, EncoderDecoder, build_model

CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE = (
    "config.json", "tokenizer.json", "model.safetensors", "optimizer.safetensors", "state.json",
)  # fmt: skip
SOURCE_TOKENIZER = "source_tokenizer.json"
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
        elapsed: seconds of a budget that are gone, until the decay of the learning rate has begun.
        best_loss: validation loss of the best checkpoint, nats per token.
        best_bleu: its BLEU, of an encoder-decoder.
        best_step: where that was.
        finished: whether all the planned steps are done.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    elapsed: float = 0.0
    best_loss: float | None = None
    best_bleu: float | None = None
    best_step: int | None = None
    finished: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be used, and where it came from; `source_tokenizer` is None where one serves for both sides."""

    model: DecoderOnly | EncoderDecoder
    tokenizer: Tokenizer
    config: RunConfig
    folder: Path
    source_tokenizer: Tokenizer | None = None


def save_checkpoint(
    run: Path,
    *,
    config: RunConfig,
    tokenizer: Tokenizer,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: TrainingState,
    is_best: bool,
    source_tokenizer: Tokenizer | None = None,
) -> Path:
    """Write `RUN/checkpoints/step-N` so that it is there whole or not at all; returns its folder."""
    folder = run / "checkpoints" / f"step-{state.step}"
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    files.write_json(unfinished / CONFIG, config.to_dict())
    tokenizer.save(unfinished / TOKENIZER)
    if source_tokenizer is not None:
        source_tokenizer.save(unfinished / SOURCE_TOKENIZER)
    save_file(dict(model), unfinished / MODEL)
    save_file(dict(optimizer), unfinished / OPTIMIZER)
    files.write_json(unfinished / STATE, dataclasses.asdict(state))
    sums = {path.name: files.sha256(path) for path in sorted(unfinished.iterdir())}
    for name in sums:
        files.sync(unfinished / name)
    files.write_json(unfinished / MANIFEST, {"sha256": sums})
    files.sync(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    files.sync(folder.parent)
    for pointer in ("last", "best") if is_best else ("last",):
        files.replace_text(run / pointer, folder.name + "\n")
    return folder


def refuse_existing(folder: Path) -> None:
    """InputError if a folder holds a run, or is no folder that one could be made in."""
    _check_name(folder)
    if any(folder.glob("checkpoints/step-*")):
        raise InputError(f"{folder}: holds a run already; go on with --resume {folder} or choose another -o")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, not a folder for a run (-o)")


def _check_name(folder: Path) -> None:
    """InputError for a name that is no UTF-8: safetensors cannot read a file that is called so."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(f"{folder}: the name of a run must be valid UTF-8; choose another name") from None


def remove_old(run: Path, *, keep: int) -> None:
    """Remove all checkpoints but the latest `keep` and those that `best` and `last` name; none at all for 0."""
    named = {(run / pointer).read_text().strip() for pointer in ("best", "last") if (run / pointer).is_file()}
    for folder in complete(run)[:-keep] if keep else []:
        if folder.name not in named:
            (folder / MANIFEST).unlink()  # first, so that half a checkpoint is never taken for one
            shutil.rmtree(folder)


def complete(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [manifest.parent for manifest in run.glob(f"checkpoints/step-*/{MANIFEST}")]
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")))


def find_checkpoint(path: Path, *, which: str = "best") -> Path:
    """The checkpoint that a path means: itself, or the best or last one of a run.

    Args:
        path: a run folder or a checkpoint folder.
        which: "best" (the last one where no best is known) or "last" (the latest that is complete).

    Raises:
        InputError: there is none, or the best one is gone: another would be taken for it.
    """
    _check_name(path)
    if (path / MANIFEST).is_file() and (path / MODEL).is_file():
        return path
    if not path.exists():
        raise _missing(path)
    for pointer in (which, "last"):
        if (path / pointer).is_file():
            folder = path / "checkpoints" / (path / pointer).read_text().strip()
            if (folder / MANIFEST).is_file():
                return folder
            if pointer == "best" and (others := complete(path)):
                raise InputError(f"{folder}: the best checkpoint is missing; name another one, such as {others[-1]}")
    if found := complete(path):
        return found[-1]
    if (path / CONFIG).is_file() and (path / "checkpoints").is_dir():
        raise InputError(f"{path}: this run has no checkpoint yet")
    raise InputError(f"{path}: not a run (a folder that `lm train` made, with checkpoints/ in it)")


def _missing(path: Path) -> InputError:
    """What to say of a run or checkpoint that is not there."""
    if path.parent.name == "checkpoints" and (found := complete(path.parent.parent)):
        return InputError(f"{path}: no such checkpoint; there is {', '.join(folder.name for folder in found)}")
    runs = [found.parent.name for found in path.parent.glob("*/checkpoints")]
    return InputError(f"{path}: no such run{options.suggestion(path.name, runs)}")


def load_config(folder: Path) -> RunConfig:
    """The configuration in a run or checkpoint folder."""
    path = folder / CONFIG
    with _damage():
        return RunConfig.from_dict(files.read_json(path), where=str(path))


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
    tokenizer, source_tokenizer = load_tokenizers(folder)
    return LoadedModel(model, tokenizer, config, folder, source_tokenizer)


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of a checkpoint, and that of its sources if they have their own."""
    of_source = folder / SOURCE_TOKENIZER
    return Tokenizer.load(folder / TOKENIZER), Tokenizer.load(of_source) if of_source.is_file() else None


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a run's best checkpoint, or of a checkpoint, as they were saved."""
    folder = find_checkpoint(path)
    verify(folder)
    return load_file(folder / MODEL)


def load_state(folder: Path) -> TrainingState:
    """How far the run was at a checkpoint."""
    with _damage():
        return options.build(TrainingState, files.read_json(folder / STATE), where=str(folder / STATE))


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """A wrong value in a file that lm wrote is no wrong use of a flag."""
    try:
        yield
    except UsageError as error:
        raise InputError(str(error)) from error


def verify(folder: Path) -> None:
    """Raise InputError unless every file of a checkpoint is what was written."""
    for name, expected in files.read_json(folder / MANIFEST)["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing; the checkpoint is damaged, use another one")
        if files.sha256(path) != expected:
            raise InputError(
                f"{path}: differs from its sha256 in {MANIFEST}; the checkpoint is damaged, use another one"
            )
