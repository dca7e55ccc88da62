"""Checkpoints: atomic writing, loading with checksums, pruning; tensors in .safetensors files, memory-mapped.

Paths are in `lm.run_folder`.
"""

from __future__ import annotations

import dataclasses
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lm import files, run_folder
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.errors import InputError, UsageError
from lm.hardware import Hardware, trim_malloc_memory
from lm.model import Model, build_model, init_empty_weights
from lm.model.layers import quantise
from lm.model.lora import merge_adapters
from lm.run_folder import TrainingState
from lm.tokenizer import Tokenizer


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
    state: TrainingState,
    is_best: bool,
    optimizer: Mapping[str, Tensor] | None = None,
    source_tokenizer: Tokenizer | None = None,
) -> Path:
    """Write `RUN/checkpoints/step-N` atomically, and point `last`, then `best` to it; returns its folder.

    An existing checkpoint of the same step has the same weights, so it is kept: on resuming, what followed it before
    the next step is repeated.

    Args:
        is_best: whether `best` points to this checkpoint from now on.
        optimizer: its state; without it, the checkpoint cannot be resumed.
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
            if optimizer is not None:
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
    """Remove a checkpoint atomically; `clean_up` removes what is left of it, as NFS keeps files that are mapped."""
    shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.removed")), ignore_errors=True)


def load_model(path: Path, hardware: Hardware, *, which: run_folder.Pointer = "best") -> LoadedModel:
    """Load the model of a run or checkpoint for inference, or those of an ensemble (`run_folder.list_members`).

    Adapters are merged into their base weights. The config of an ensemble is that of its first run.

    Raises:
        InputError: there is no checkpoint, or a file of it is missing or damaged.
        UsageError: the runs of an ensemble don't predict the same tokens from the same input.
    """
    path, *others = run_folder.list_members(path)
    folder = run_folder.find_checkpoint(path, which=which)
    config, weights = run_folder.load_config(folder), load_weights(folder)
    with init_empty_weights():
        model = build_model(config.model)
    model.load_state_dict(weights, assign=True)
    del weights  # so that pages are released as they are converted
    model = prepare_for_inference(model, hardware)
    trim_malloc_memory()
    tokenizers = load_tokenizers(folder)
    for other in others:
        check_predictions(other, tokenizers, config.model)
        model.add_members(load_model(other, hardware, which=which).model)
    return LoadedModel(model, tokenizers[0], config, folder, tokenizers[1])


def check_predictions(path: Path, tokenizers: tuple[Tokenizer, Tokenizer | None], model: ModelConfig) -> None:
    """Raise UsageError unless a run predicts the same tokens as another model, from the same input."""
    folder, (target, source) = run_folder.find_checkpoint(path), tokenizers
    (own, own_source), config = load_tokenizers(folder), run_folder.load_config(folder).model
    is_alike = (own.sha256, (own_source or own).sha256) == (target.sha256, (source or target).sha256)
    if not is_alike or any(getattr(config, name) != getattr(model, name) for name in _PREDICTION):
        raise UsageError(f"{path}: has another tokenizer, or is another kind of model, than the run it is used with")


def prepare_for_inference(model: Model, hardware: Hardware) -> Model:
    """Convert a model for inference in place: device, dtype, eval mode, quantisation and kernels."""
    model.to(device=hardware.torch_device, dtype=hardware.torch_dtype).eval().requires_grad_(False)
    if hardware.dtype == "int8":
        quantise(model)
    return model


_PREDICTION = ("purpose", "labels", "syntax")


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


_OPEN_FILES = 8192  # macOS has an upper limit of 10,240
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file with default permissions; safetensors makes it readable by the owner only."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from None
    path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a file, each memory-mapped by itself; its pages are read on use, and released with it.

    So a model converted weight by weight never needs the memory twice: 400 MB in bfloat16 become float32 with a peak of
    1,050 MB, torch included; with safetensors' own tensors, which release their pages together, of 1,370 MB. Writing to
    a tensor doesn't change the file. A tensor keeps a file descriptor, of which the process may have more from now on.

    Raises:
        InputError: the file cannot be read.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= allowed < (enough := min(_OPEN_FILES, most % 2**63)):  # -1 stands for no limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    try:
        with safe_open(path, "np"):  # validates the header
            header, start = run_folder.read_tensor_header(path)
        return {
            name: _map_tensor(path, _DTYPES[each["dtype"]], each["shape"], *(start + n for n in each["data_offsets"]))
            for name, each in header.items()
        }
    except (SafetensorError, KeyError) as error:
        raise InputError(f"{path}: not a .safetensors file that can be read ({error}); use another one") from None


def _map_tensor(path: Path, dtype: torch.dtype, shape: Sequence[int], start: int, end: int) -> Tensor:
    if start == end:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.memmap(path, mode="c", offset=start, shape=end - start)).view(dtype).view(shape)
