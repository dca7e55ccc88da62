"""Checkpoints: written atomically, verified when read, and removed when they are too many. No pickle.

Where they are and what their files are called is known to `lm.run_folder`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from torch import Tensor

from lm import base, files, run_folder
from lm.config.lora import LoraConfig
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError
from lm.hardware import Hardware, give_back_freed_memory
from lm.model.layers import quantise
from lm.model.lora import merge_adapters
from lm.model.transformer import (
    Model,
    Transformer,
    build_model,
    choose_kernels,
    count_parameters,
    init_empty_weights,
)
from lm.run_folder import TrainingState
from lm.tensors import load_tensors, save_tensors
from lm.tokenizer.tokenizer import Tokenizer

M = TypeVar("M", bound=Transformer)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be used, and where it came from; `source_tokenizer` is None where one serves for both sides."""

    model: Model
    tokenizer: Tokenizer
    config: RunConfig
    folder: Path
    source_tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        """Its folder, size, purpose and device."""
        size, device = count_parameters(self.model), next(self.model.parameters()).device.type
        return f"<{self.folder}: {size:,} parameters, {self.model.config.purpose}, on {device}>"


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
    resumed_at: int | None = None,
) -> Path:
    """Write `RUN/checkpoints/step-N` atomically; returns its folder.

    Args:
        run: the run's folder.
        config: its settings and its plan.
        tokenizer: of the run, or of its targets.
        model: the weights.
        optimizer: the state of the optimizers.
        state: how far the run has come.
        is_best: whether `best` names this checkpoint from now on.
        source_tokenizer: of the sources, if they have their own.
        resumed_at: the step of an older checkpoint that the run was resumed from, if this is the first one since. The
            checkpoints after that step and the log set aside are then of another branch, and are removed.

    Raises:
        InputError: it cannot be written, on a full disk for instance; what was there before still is.
    """
    folder = run_folder.checkpoint_folder(run, state.step)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        remove_leftovers(run)
        unfinished.mkdir(parents=True)
        files.write_json(unfinished / run_folder.CONFIG, config.to_dict())
        tokenizer.save(unfinished / run_folder.TOKENIZER)
        if source_tokenizer is not None:
            source_tokenizer.save(unfinished / run_folder.SOURCE_TOKENIZER)
        save_tensors(model, unfinished / run_folder.MODEL)
        save_tensors(optimizer, unfinished / run_folder.OPTIMIZER)
        files.write_json(unfinished / run_folder.STATE, dataclasses.asdict(state))
        _seal(unfinished)
        if resumed_at is None:
            _add(unfinished, folder, is_best=is_best)
        else:
            unfinished.rename(run_folder.first_of_branch(folder, resumed_at=resumed_at))
            files.sync(folder.parent)
            _finish_branches(run)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{folder}: cannot be saved ({reason}); earlier checkpoints are untouched") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _add(unfinished: Path, folder: Path, *, is_best: bool) -> None:
    """Give a checkpoint its name, and have `best`, then `last` name it.

    `last` comes last: until then the run is resumed from the checkpoint before, whose best one is still there. A
    checkpoint of the same step has the same weights, but was perhaps saved before their evaluation; so it can be named
    as the best one before it is replaced.
    """
    if is_best and run_folder.is_checkpoint(folder):
        point_to(folder, "best")
    _put_in_place(unfinished, folder)
    if is_best:
        point_to(folder, "best")
    point_to(folder, "last")


def point_to(folder: Path, pointer: run_folder.Pointer) -> None:
    """Have `best` or `last` of a run name one of its checkpoints."""
    path = folder.parent.parent / pointer
    if run_folder.pointed_to(path.parent, pointer) != folder.name:
        files.replace_text(path, folder.name + "\n")


def _finish_branches(run: Path) -> None:
    """Remove the other branch of a run whose first checkpoint after it was resumed is complete, and name that.

    Whatever part of this has been done before a process was killed, it can be repeated. `best` and `last` name complete
    checkpoints all the time, first those up to the step at which the run was resumed.
    """
    for begun, folder, resumed_at in run_folder.hidden_checkpoints(run):
        if resumed_at is None:
            continue
        best_step = run_folder.load_state(begun).best_step
        kept = {run_folder.step_of(path): path for path in run_folder.checkpoints(run)}
        kept = {step: path for step, path in kept.items() if step <= resumed_at}
        best_of_kept = run_folder.load_state(kept[max(kept)]).best_step if kept else None
        if best_of_kept in kept:
            point_to(kept[best_of_kept], "best")
        else:
            (run / run_folder.BEST).unlink(missing_ok=True)
        if kept:
            point_to(kept[max(kept)], "last")
        for name in (run_folder.METRICS, run_folder.TIMINGS):
            run_folder.set_aside(run / name).unlink(missing_ok=True)
        files.sync(run)
        for other in run_folder.later_than(run, resumed_at):
            remove(other)
        if best_step == run_folder.step_of(folder):
            point_to(folder, "best")
        elif best_step in kept:
            point_to(kept[best_step], "best")
        else:
            (run / run_folder.BEST).unlink(missing_ok=True)
        point_to(folder, "last")
        _put_in_place(begun, folder)


def _seal(folder: Path) -> None:
    """Wait until the files of a checkpoint are on the disk, and write down their sums."""
    sums = {path.name: files.sha256(path) for path in sorted(folder.iterdir())}
    for name in sums:
        files.sync(folder / name)
    files.write_json(folder / run_folder.MANIFEST, {"sha256": sums})
    files.sync(folder)


def _put_in_place(unfinished: Path, folder: Path) -> None:
    """Give a checkpoint its name; one that had the name before is whole, here or set aside, until this one has it."""
    aside = run_folder.replaced(folder)
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
    """Remove what a process that was killed had begun to write, or to remove; what it had set aside goes back.

    A branch whose first checkpoint is complete takes the place of the other one. What another thread of this process is
    writing beside the checkpoints stays.
    """
    for hidden, folder, resumed_at in run_folder.hidden_checkpoints(run):
        if resumed_at is None and not folder.exists():
            hidden.rename(folder)
    _finish_branches(run)
    for path in run.glob(f"{run_folder.CHECKPOINTS}/.{run_folder.STEP}*"):
        shutil.rmtree(path, ignore_errors=True)
    logs = (run_folder.METRICS, run_folder.TIMINGS)
    written = (run_folder.CONFIG, run_folder.LAST, run_folder.BEST, run_folder.BASE, run_folder.BASE_WEIGHTS, *logs)
    for name in (*written, *(run_folder.set_aside(Path(log)).name for log in logs)):
        for path in run.glob(f".{name}.[0-9]*"):
            if path.name != f".{name}.{os.getpid()}":
                path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove a checkpoint at one stroke: half of one is never taken for a whole."""
    going = folder.with_name(f".{folder.name}.removed")
    folder.rename(going)
    shutil.rmtree(going)


def remove_old(run: Path, *, keep: int) -> None:
    """Remove all checkpoints but the latest `keep` and those that `best` and `last` name; none at all for 0."""
    named = {run_folder.pointed_to(run, "best"), run_folder.pointed_to(run, "last")}
    for folder in run_folder.checkpoints(run)[:-keep] if keep else []:
        if folder.name not in named:
            with contextlib.suppress(PermissionError):  # on Windows, a process that uses it; the next save tries again
                remove(folder)


def load_model(path: Path, hardware: Hardware, *, which: run_folder.Pointer = "best") -> LoadedModel:
    """The model of a run or checkpoint, in eval mode, on the device and in the type that `hardware` says.

    Adapters are added to the weights that they belong to, so that the model is as fast as the one they were made for.

    Args:
        path: a run or a checkpoint.
        hardware: what to run on.
        which: of the checkpoints of a run.

    Raises:
        InputError: there is no checkpoint, or a file of it is missing or damaged.
    """
    folder = run_folder.find_checkpoint(path, which=which)
    run_folder.verify(folder, to_train=False)
    config = run_folder.load_config(folder)
    with init_empty_weights():
        model = build_model(config.model)
    try:
        model.load_state_dict(_weights(folder, config), assign=True)
    except RuntimeError:
        raise _other_weights(folder) from None
    model = ready(model, hardware)
    give_back_freed_memory()
    tokenizer, source_tokenizer = load_tokenizers(folder)
    if tokenizer.vocab_size > config.model.vocab_size:
        problem = f"has {tokenizer.vocab_size:,} tokens, but the model {config.model.vocab_size:,}"
        raise InputError(f"{folder / run_folder.TOKENIZER}: {problem}; the checkpoint is damaged, use another one")
    return LoadedModel(model, tokenizer, config, folder, source_tokenizer)


def ready(model: M, hardware: Hardware) -> M:
    """A model to be used and no more trained, as `load_model` has it: changed in place."""
    model.to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval().requires_grad_(False)
    if hardware.dtype == "int8":
        quantise(model)
    elif hardware.device == "cpu":
        choose_kernels(model, hardware.torch_dtype)
    return model


def derive(source: Path, out: Path, weights: Mapping[str, Tensor], *, is_same: bool = False) -> Path:
    """Write a run whose only checkpoint has weights that were made of another; it can be used, not resumed.

    Args:
        source: the other checkpoint, whose settings, tokenizers and progress are taken.
        out: the folder of the new run, which holds nothing.
        weights: of the whole model; adapters are none any more.
        is_same: whether it is the same model, so that its scores are those of the other.

    Returns:
        The new checkpoint's folder.
    """
    tokenizer, source_tokenizer = load_tokenizers(source)
    state = dataclasses.replace(run_folder.load_state(source), finished=True)
    if not is_same:
        state = dataclasses.replace(state, best_loss=None, best_bleu=None, best_step=None)
    return save_checkpoint(
        out,
        config=dataclasses.replace(run_folder.load_config(source), plan=None, lora=LoraConfig(), base_sha256=None),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model=weights,
        optimizer={},
        state=state,
        is_best=True,
    )


def merge(path: Path, out: Path) -> Path:
    """Write a plain run of one that has adapters, in which they are added to the weights that they belong to.

    Args:
        path: the run, whose best checkpoint is taken, or a checkpoint.
        out: the folder of the new run; InputError if it holds one already.

    Returns:
        The new checkpoint's folder.

    Raises:
        InputError: the run is damaged, or the weights that it adapts are gone or have changed.
        UsageError: it has no adapters.
    """
    run_folder.refuse_existing(out)
    found = run_folder.find_checkpoint(path)
    if not run_folder.load_config(found).lora:
        raise UsageError(f"{path}: has no adapters, so there is nothing to merge", settings=["lora"])
    return derive(found, out, load_weights(found), is_same=True)


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of a checkpoint, and that of its sources if they have their own."""
    of_source = folder / run_folder.SOURCE_TOKENIZER
    return Tokenizer.load(folder / run_folder.TOKENIZER), Tokenizer.load(of_source) if of_source.is_file() else None


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a run's best checkpoint, or of a checkpoint, as they were saved; adapters added in."""
    folder = run_folder.find_checkpoint(path)
    run_folder.verify(folder, to_train=False)
    return _weights(folder, run_folder.load_config(folder))


def load_base(checkpoint: Path, config: RunConfig) -> dict[str, Tensor]:
    """The weights that the adapters of a checkpoint belong to; InputError if they are gone or have changed."""
    return load_tensors(base.base_weights(checkpoint, config))


def _weights(folder: Path, config: RunConfig) -> dict[str, Tensor]:
    """The weights of the model of a checkpoint, with its adapters added in if it has only these."""
    saved = load_tensors(folder / run_folder.MODEL)
    if not config.lora:
        return saved
    try:
        return merge_adapters(config.model, config.lora, load_base(folder, config) | saved)
    except RuntimeError:
        raise _other_weights(folder) from None


def _other_weights(folder: Path) -> InputError:
    problem = f"has not the weights of the model in {run_folder.CONFIG}"
    return InputError(f"{folder / run_folder.MODEL}: {problem}; use another one")
