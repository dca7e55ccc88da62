"""Checkpoints: atomic writing, loading with checksums, pruning. Paths are in `lm.run_folder`."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lm import files, run_folder
from lm.config.run_config import LoraConfig, RunConfig
from lm.errors import UsageError
from lm.hardware import Hardware, trim_malloc_memory
from lm.model.layers import quantise
from lm.model.lora import merge_adapters
from lm.model.transformer import (
    Model,
    build_model,
    init_empty_weights,
)
from lm.run_folder import TrainingState
from lm.safetensors_io import load_tensors, save_tensors
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for inference, with its tokenizers; `source_tokenizer` is None if both sides use one."""

    model: Model
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
    """Write `RUN/checkpoints/step-N` atomically, and point `last`, then `best` to it; returns its folder.

    An existing checkpoint of the same step has the same weights, so it is kept: on resuming, what followed it before
    the next step is repeated.

    Args:
        is_best: whether `best` points to this checkpoint from now on.
        source_tokenizer: of the sources, if they have their own.

    Raises:
        OSError: it cannot be written, for instance on a full disk; existing checkpoints are untouched.
    """
    folder = run_folder.checkpoint_folder(run, state.step)
    if run_folder.read_pointer(run, "last") != folder.name:
        if folder.exists():  # left by a process that was killed before it pointed to it
            _remove(folder)
        with files.replacing(folder) as unfinished:
            unfinished.mkdir()
            files.write_json(unfinished / run_folder.CONFIG, config.to_dict())
            tokenizer.save(unfinished / run_folder.TOKENIZER)
            if source_tokenizer is not None:
                source_tokenizer.save(unfinished / run_folder.SOURCE_TOKENIZER)
            save_tensors(model, unfinished / run_folder.MODEL)
            save_tensors(optimizer, unfinished / run_folder.OPTIMIZER)
            files.write_json(unfinished / run_folder.STATE, dataclasses.asdict(state))
            sums = {path.name: files.sha256(path) for path in sorted(unfinished.iterdir())}
            files.write_json(unfinished / run_folder.MANIFEST, {"sha256": sums})
    set_pointer(folder, "last")
    if is_best:
        set_pointer(folder, "best")
    return folder


def set_pointer(folder: Path, pointer: run_folder.Pointer) -> None:
    """Let `best` or `last` of a run point to one of its checkpoints."""
    files.replace_text(folder.parent.parent / pointer, folder.name + "\n")


def clean_up(run: Path) -> None:
    """Remove the unfinished files and checkpoints of a killed process."""
    for path in run.glob(f"{run_folder.CHECKPOINTS}/.{run_folder.STEP}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in run.glob(".*.[0-9]*"):
        path.unlink(missing_ok=True)


def prune_checkpoints(run: Path, *, keep: int) -> None:
    """Remove all checkpoints except the latest `keep`, `best` and `last`; none for 0."""
    named = {run_folder.read_pointer(run, pointer) for pointer in ("best", "last")}
    for folder in run_folder.list_checkpoints(run)[:-keep] if keep else []:
        if folder.name not in named:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a checkpoint atomically."""
    shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.removed")))


def load_model(path: Path, hardware: Hardware, *, which: run_folder.Pointer = "best") -> LoadedModel:
    """Load the model of a run or checkpoint for inference.

    Adapters are merged into their base weights.

    Raises:
        InputError: there is no checkpoint, or a file of it is missing or damaged.
    """
    folder = run_folder.find_checkpoint(path, which=which)
    config, weights = run_folder.load_config(folder), load_weights(folder)
    with init_empty_weights():
        model = build_model(config.model)
    model.load_state_dict(weights, assign=True)
    del weights  # so that pages are released as they are converted
    model = prepare_for_inference(model, hardware)
    trim_malloc_memory()
    tokenizer, source_tokenizer = load_tokenizers(folder)
    return LoadedModel(model, tokenizer, config, folder, source_tokenizer)


def prepare_for_inference(model: Model, hardware: Hardware) -> Model:
    """Convert a model for inference in place: device, dtype, eval mode, quantisation and kernels."""
    model.to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval().requires_grad_(False)
    if hardware.dtype == "int8":
        quantise(model)
    return model


def write_derived_run(source: Path, out: Path, weights: Mapping[str, Tensor], *, keeps_scores: bool = False) -> Path:
    """Write a run whose only checkpoint has weights derived from another one; it cannot be resumed.

    Args:
        source: checkpoint whose settings, tokenizers and progress are copied.
        weights: of the whole model, without adapters.
        keeps_scores: whether the scores of the source hold, because the model is equivalent.

    Returns:
        The folder of the new checkpoint.
    """
    tokenizer, source_tokenizer = load_tokenizers(source)
    config, state = run_folder.load_config(source), run_folder.load_state(source)
    return save_checkpoint(
        out,
        config=config.replace(
            origin=run_folder.describe_parent(source), plan=None, lora=LoraConfig(), base_sha256=None
        ),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model=weights,
        optimizer={},
        state=dataclasses.replace(state if keeps_scores else TrainingState(state.step), finished=True),
        is_best=True,
    )


def write_merged_run(path: Path, out: Path) -> Path:
    """Write a run with adapters merged into their base weights.

    Args:
        path: a run, whose best checkpoint is used, or a checkpoint.
        out: folder of the new run; InputError if it holds one.

    Returns:
        The folder of the new checkpoint.

    Raises:
        InputError: the run is damaged, or its base weights are missing or have changed.
        UsageError: it has no adapters.
    """
    run_folder.refuse_existing(out)
    checkpoint = run_folder.find_checkpoint(path)
    if not run_folder.load_config(checkpoint).lora:
        raise UsageError(f"{path}: has no adapters, so there is nothing to merge")
    return write_derived_run(checkpoint, out, load_weights(checkpoint), keeps_scores=True)


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer | None]:
    """Load the tokenizer of a checkpoint, and that of its sources if they have their own."""
    source_path = folder / run_folder.SOURCE_TOKENIZER
    return Tokenizer.load(folder / run_folder.TOKENIZER), Tokenizer.load(source_path) if source_path.is_file() else None


def load_weights(path: Path) -> dict[str, Tensor]:
    """Load the weights of a checkpoint, or of a run's best one, with adapters merged."""
    folder = run_folder.find_checkpoint(path)
    run_folder.verify_checkpoint(folder, to_train=False)
    config, saved = run_folder.load_config(folder), load_tensors(folder / run_folder.MODEL)
    if not config.lora:
        return saved
    base = load_tensors(run_folder.find_base_weights(folder, config))
    return merge_adapters(config.model, config.lora, base | saved)
