"""A run folder on disk: checkpoints complete in themselves, written atomically, verified when read. No pickle.

RUN/config.json                  what the run is, with a format_version
RUN/metrics.jsonl                what was learned; RUN/timings.jsonl: how fast
RUN/last, RUN/best               one line each: the name of a checkpoint
RUN/.lock                        locked while the run is trained; empty
RUN/checkpoints/step-N/          config.json  tokenizer.json  model.safetensors  optimizer.safetensors  state.json
                                 manifest.json: sha256 of each, written last
                                 source_tokenizer.json: only of an encoder-decoder with separate vocabularies
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lm import files
from lm.config import options
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError
from lm.hardware import Hardware
from lm.model.transformer import DecoderOnly, EncoderDecoder, build_model
from lm.tokenizer.tokenizer import Tokenizer

CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE = (
    "config.json", "tokenizer.json", "model.safetensors", "optimizer.safetensors", "state.json",
)  # fmt: skip
SOURCE_TOKENIZER = "source_tokenizer.json"
MANIFEST = "manifest.json"
LOCK = ".lock"
_NAME = re.compile(r"step-[0-9]+")
_ASIDE = ".replaced"
_BEGUN = {CONFIG, "checkpoints", "metrics.jsonl", "timings.jsonl", "tensorboard"}


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
        evaluation_due: whether the evaluation of this step was put off, as by stopping, and is still to come.
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
    evaluation_due: bool = False
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
    """Write `RUN/checkpoints/step-N` so that it is there whole or not at all; returns its folder.

    Raises:
        InputError: it cannot be written, on a full disk for instance; what was there before still is.
    """
    folder = run / "checkpoints" / f"step-{state.step}"
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        remove_leftovers(run)
        unfinished.mkdir(parents=True)
        files.write_json(unfinished / CONFIG, config.to_dict())
        tokenizer.save(unfinished / TOKENIZER)
        if source_tokenizer is not None:
            source_tokenizer.save(unfinished / SOURCE_TOKENIZER)
        save_file(dict(model), unfinished / MODEL)
        save_file(dict(optimizer), unfinished / OPTIMIZER)
        files.write_json(unfinished / STATE, dataclasses.asdict(state))
        _seal(unfinished)
        _put_in_place(unfinished, folder)
        for pointer in ("last", "best") if is_best else ("last",):
            files.replace_text(run / pointer, folder.name + "\n")
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{folder}: cannot be saved ({reason}); earlier checkpoints are untouched") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _seal(folder: Path) -> None:
    """Wait until the files of a checkpoint are on the disk, and write down their sums."""
    sums = {path.name: files.sha256(path) for path in sorted(folder.iterdir())}
    for name in sums:
        files.sync(folder / name)
    files.write_json(folder / MANIFEST, {"sha256": sums})
    files.sync(folder)


def _put_in_place(unfinished: Path, folder: Path) -> None:
    """Give a checkpoint its name; one that had the name before is whole, here or set aside, until this one has it."""
    aside = folder.with_name(f".{folder.name}{_ASIDE}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
    try:
        unfinished.rename(folder)
    except OSError:
        if aside.exists():
            aside.rename(folder)
        raise
    files.sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(run: Path) -> None:
    """Remove what a process that was killed had begun to write, or to remove; what it had set aside goes back."""
    for aside in run.glob(f"checkpoints/.step-*{_ASIDE}"):
        folder = aside.with_name(aside.name.removeprefix(".").removesuffix(_ASIDE))
        if not folder.exists():
            aside.rename(folder)
    for folder in run.glob("checkpoints/.step-*"):
        shutil.rmtree(folder, ignore_errors=True)
    for name in (CONFIG, "last", "best", "metrics.jsonl", "timings.jsonl"):
        for path in run.glob(f".{name}.[0-9]*"):
            path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove a checkpoint at one stroke: half of one is never taken for a whole."""
    going = folder.with_name(f".{folder.name}.removed")
    folder.rename(going)
    shutil.rmtree(going)


def refuse_existing(folder: Path) -> None:
    """InputError if a folder holds a run or anything else, or is no folder that one could be made in."""
    _check_name(folder)
    if any(folder.glob("checkpoints/step-*")):
        raise InputError(f"{folder}: holds a run already; go on with --resume {folder} or choose another -o")
    files.check_folder(folder)
    if (others := _visible(folder)) and not _is_begun(folder):
        raise InputError(f"{folder}: holds what is no run's ({_some(others)}); choose an empty or a new folder (-o)")


def _visible(folder: Path) -> list[str]:
    """What is in a folder, hidden files aside."""
    return sorted(path.name for path in folder.glob("[!.]*"))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _is_begun(folder: Path) -> bool:
    """Whether a folder holds what a run writes before its first checkpoint, and nothing else."""
    if not set(_visible(folder)) <= _BEGUN or not (folder / "checkpoints").is_dir() or _visible(folder / "checkpoints"):
        return False
    try:
        return not (folder / CONFIG).exists() or bool(load_config(folder))
    except InputError:
        return False


def _check_name(folder: Path) -> None:
    """InputError for a name that is no UTF-8: safetensors cannot read a file that is called so."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(f"{folder}: the name of a run must be valid UTF-8; choose another name") from None


def remove_old(run: Path, *, keep: int) -> None:
    """Remove all checkpoints but the latest `keep` and those that `best` and `last` name; none at all for 0."""
    named = {_named(run, pointer) for pointer in ("best", "last")}
    for folder in complete(run)[:-keep] if keep else []:
        if folder.name not in named:
            remove(folder)


def leave(run: Path, branch: Sequence[Path], *, best_step: int | None) -> None:
    """Remove the checkpoints of another branch of a run, once the one that goes on has saved its first.

    Args:
        run: the run's folder, in which `last` is of the branch that goes on.
        branch: the checkpoints to remove, oldest first.
        best_step: the best of what stays; None where that is not known, and the last one is taken for it.
    """
    if best_step is None:
        (run / "best").unlink(missing_ok=True)
    else:
        files.replace_text(run / "best", f"step-{best_step}\n")
    for folder in branch:
        if folder.exists() and folder.name != _named(run, "last"):  # which has replaced it
            remove(folder)


def _named(run: Path, pointer: str) -> str | None:
    """The name of the checkpoint that `best` or `last` holds."""
    path = run / pointer
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


def complete(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first; a folder with another name, such as a copy, is none of them."""
    found = [manifest.parent for manifest in run.glob(f"checkpoints/step-*/{MANIFEST}")]
    return sorted((folder for folder in found if _NAME.fullmatch(folder.name)), key=step_of)


def later_than(run: Path, step: int) -> list[Path]:
    """The complete checkpoints of a run that come after a step, oldest first."""
    return [folder for folder in complete(run) if step_of(folder) > step]


def step_of(folder: Path) -> int:
    """The step of a checkpoint of a run, by its name."""
    return int(folder.name.removeprefix("step-"))


def find_checkpoint(path: Path, *, which: str = "best") -> Path:
    """The checkpoint that a path means: itself, or the best or last one of a run.

    Args:
        path: a run folder or a checkpoint folder.
        which: "best" (the last one where no best is known) or "last" (the latest that is complete).

    Raises:
        InputError: there is none, or the best one is gone: another would be taken for it.
    """
    _check_name(path)
    if is_checkpoint(path):
        return path
    if not path.exists():
        raise _missing(path)
    for pointer in (which, "last"):
        if (name := _named(path, pointer)) is not None:
            folder = path / "checkpoints" / name
            if _NAME.fullmatch(name) is None:
                folder = path / pointer  # whose contents are anything, of any length
            elif (folder / MANIFEST).is_file():
                return folder
            if pointer == "best" and (others := complete(path)):
                raise InputError(f"{folder}: the best checkpoint is missing; name another one, such as {others[-1]}")
    if found := complete(path):
        return found[-1]
    if (path / CONFIG).is_file() and (path / "checkpoints").is_dir():
        raise InputError(f"{path}: this run has no checkpoint yet")
    raise InputError(f"{path}: not a run (a folder that `lm train` made, with checkpoints/ in it)")


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a complete checkpoint itself."""
    return (path / MANIFEST).is_file() and (path / MODEL).is_file()


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
    try:
        model.load_state_dict(load_tensors(folder / MODEL), assign=True)
    except RuntimeError:
        raise InputError(f"{folder / MODEL}: has not the weights of the model in {CONFIG}; use another one") from None
    model.to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval().requires_grad_(False)
    tokenizer, source_tokenizer = load_tokenizers(folder)
    if tokenizer.vocab_size > config.model.vocab_size:
        problem = f"has {tokenizer.vocab_size:,} tokens, but the model {config.model.vocab_size:,}"
        raise InputError(f"{folder / TOKENIZER}: {problem}; the checkpoint is damaged, use another one")
    return LoadedModel(model, tokenizer, config, folder, source_tokenizer)


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of a checkpoint, and that of its sources if they have their own."""
    of_source = folder / SOURCE_TOKENIZER
    return Tokenizer.load(folder / TOKENIZER), Tokenizer.load(of_source) if of_source.is_file() else None


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a run's best checkpoint, or of a checkpoint, as they were saved."""
    folder = find_checkpoint(path)
    verify(folder)
    return load_tensors(folder / MODEL)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file; InputError if they cannot be read."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path}: not a .safetensors file that can be read ({error}); use another one") from None


def load_state(folder: Path) -> TrainingState:
    """How far the run was at a checkpoint."""
    with _damage():
        state = options.build(TrainingState, files.read_json(folder / STATE), where=str(folder / STATE))
    for name, value in vars(state).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{folder / STATE}: {name} must be a finite number, not {value}; use another checkpoint")
    return state


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """A wrong value in a file that lm wrote is no wrong use of a flag."""
    try:
        yield
    except UsageError as error:
        raise InputError(str(error)) from error


def verify(folder: Path) -> None:
    """Raise InputError unless every file of a checkpoint is what was written."""
    for name, expected in _sums(folder).items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing; the checkpoint is damaged, use another one")
        if files.sha256(path) != expected:
            raise InputError(
                f"{path}: differs from its sha256 in {MANIFEST}; the checkpoint is damaged, use another one"
            )


def _sums(folder: Path) -> dict[str, str]:
    """The sums in a checkpoint's manifest, by file; InputError unless it has them all."""
    values = files.read_json(folder / MANIFEST)
    sums = values.get("sha256") if isinstance(values, dict) else None
    if not isinstance(sums, dict) or not {CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE} <= sums.keys():
        raise InputError(
            f"{folder / MANIFEST}: not the manifest of a checkpoint; the checkpoint is damaged, use another one"
        )
    return sums
