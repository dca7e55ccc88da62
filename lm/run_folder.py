"""The layout of run folders: file names, pointers to checkpoints, config and state, without torch.

RUN/config.json                  the settings and the plan of the run, with the reasons; has a format_version
RUN/metrics.jsonl                what was learned; RUN/timings.jsonl: how fast
RUN/tensorboard/                 TensorBoard files, if enabled
RUN/last, RUN/best               one line each: the name of a checkpoint
RUN/base.safetensors             a hard link to the weights that this run's adapters belong to, or a copy of them
RUN/.lock                        locked while the run is trained; empty
RUN/checkpoints/step-N/          config.json  tokenizer.json  model.safetensors  optimizer.safetensors  state.json
                                 manifest.json: sha256 of each, written last
                                 tokenizer_config.json: chat template and special tokens, if there are any
                                 source_tokenizer.json: only of an encoder-decoder with separate vocabularies

No other module contains these names.
"""

from __future__ import annotations

import fcntl
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from lm import files
from lm.config import settings as options
from lm.config.run_config import RunConfig
from lm.errors import InputError, UsageError

T = TypeVar("T")
RUNS = Path("runs")
"""The folder of runs that have no other."""
CONFIG, TOKENIZER, SOURCE_TOKENIZER = "config.json", "tokenizer.json", "source_tokenizer.json"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
MANIFEST = "manifest.json"
CHECKPOINTS, STEP = "checkpoints", "step-"
METRICS, TIMINGS, TENSORBOARD = "metrics.jsonl", "timings.jsonl", "tensorboard"
BASE_WEIGHTS = "base.safetensors"
LOCK = ".lock"
_BEFORE_CHECKPOINTS = {CONFIG, METRICS, TIMINGS, TENSORBOARD, BASE_WEIGHTS, CHECKPOINTS}

Pointer = Literal["best", "last"]
"""Files of a run that name one of its checkpoints."""


@dataclass(frozen=True)
class TrainingState:
    """Progress of a run; saved as `state.json` of a checkpoint.

    Attributes:
        samples: windows, examples or pairs consumed; with the seed, the position in the data.
        training_seconds: without evaluations.
        training_loss: mean nats per token of the last steps, each weighted 0.9 times the next, or of all the first.
        budget_seconds_used: seconds of a budget used, until the learning rate starts to decay.
        best_loss: validation loss of the best checkpoint, in nats per token.
        best_bleu: BLEU of the best checkpoint, for encoder-decoders.
        best_bits_per_byte: bits per byte of the best checkpoint, where all of the text is predicted.
        best_accuracy: accuracy of the best checkpoint, for masked models and classifiers.
        evaluation_due: whether the last step is still to be followed by an evaluation, for instance after stopping.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    training_seconds: float = 0.0
    training_loss: float = 0.0
    budget_seconds_used: float = 0.0
    best_loss: float | None = None
    best_bleu: float | None = None
    best_bits_per_byte: float | None = None
    best_accuracy: float | None = None
    best_step: int | None = None
    evaluation_due: bool = False
    finished: bool = False


class RunLock(io.FileIO):
    """The lock of a run, which other processes cannot take until it is closed, or this process ends."""

    def __init__(self, run: Path) -> None:
        """Take the lock of a run, whose folder need not exist; InputError if another process has it."""
        run.mkdir(parents=True, exist_ok=True)
        super().__init__(run / LOCK, "a")
        try:
            fcntl.flock(self, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{run}: another process is training this run") from None
        except OSError:  # a file system without locks
            pass

    __del__ = io.FileIO.close  # without a warning


def is_run(path: Path) -> bool:
    """Whether a folder is a run, possibly without a checkpoint."""
    return (path / CHECKPOINTS).is_dir()


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a complete checkpoint."""
    return (path / MANIFEST).is_file() and (path / MODEL).is_file()


def is_checkpoint_name(name: str) -> bool:
    """Whether a name is that of a checkpoint; not of a copy such as step-20-backup."""
    return re.fullmatch(rf"{STEP}[0-9]+", name) is not None


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"{STEP}{step}"


def _run_of(path: Path) -> Path:
    """Return the run of a run or checkpoint."""
    path = path if path.parent.name == CHECKPOINTS else path.resolve()  # it may be named from within
    return path.parent.parent if path.parent.name == CHECKPOINTS else path


def describe_parent(path: Path) -> str:
    """Return `from` and the name of the run of a path."""
    return f"from {_run_of(path).resolve().name}"


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(STEP))


def list_checkpoints(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    checkpoints = [manifest.parent for manifest in run.glob(f"{CHECKPOINTS}/{STEP}*/{MANIFEST}")]
    return sorted((folder for folder in checkpoints if is_checkpoint_name(folder.name)), key=checkpoint_step)


def read_pointer(run: Path, pointer: Pointer) -> str | None:
    """Return the name of the `best` or `last` checkpoint of a run; None if there is no such file."""
    path = run / pointer
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


def find_checkpoint(path: Path, *, which: Pointer = "best") -> Path:
    """Return the checkpoint of a path: itself, or the best or last one of a run.

    Args:
        path: a run folder or a checkpoint folder.
        which: "best" (the last if no best is known) or "last" (the latest complete one).

    Raises:
        InputError: there is none, or the best one is missing.
    """
    if is_checkpoint(path):
        return path
    if not (checkpoints := list_checkpoints(path)):
        raise InputError(f"{path}: neither a checkpoint nor a run (a folder that `lm train` made) with one")
    name = read_pointer(path, which) or read_pointer(path, "last") or checkpoints[-1].name
    if (found := path / CHECKPOINTS / name) in checkpoints:
        return found
    if which == "best":
        raise InputError(f"{found}: the best checkpoint is missing; name another one")
    return checkpoints[-1]


def list_members(path: Path) -> list[Path]:
    """Return the runs of an ensemble, which is written RUN,RUN; of anything else the path itself."""
    return [path] if path.exists() else [Path(name) for name in str(path).split(",")]


def find_first(path: Path) -> Path:
    """Return the best checkpoint of a run, or of the first one of an ensemble; errors as of `find_checkpoint`."""
    return find_checkpoint(list_members(path)[0])


def find_tokenizer(path: Path) -> Path:
    """Return a tokenizer file: itself, in a folder, or in the last checkpoint of a run; InputError if there is none."""
    if not path.is_dir():
        return path
    own = path / TOKENIZER
    return own if own.is_file() else find_checkpoint(path, which="last") / TOKENIZER


def refuse_existing(folder: Path) -> None:
    """Raise InputError if a folder holds a run or other files, or cannot be created.

    A run that was killed before its first checkpoint does not count.
    """
    files.check_folder(folder)
    names = {path.name for path in folder.glob("[!.]*")}
    is_unfinished = CHECKPOINTS in names <= _BEFORE_CHECKPOINTS and not any(folder.glob(f"{CHECKPOINTS}/[!.]*"))
    if names and not is_unfinished:
        raise InputError(f"{folder}: holds a run already, or other files; choose another folder, or resume the run")


def refuse_adapters(base: Path) -> None:
    """Raise UsageError if a checkpoint has adapters itself."""
    if load_config(base).lora:
        raise UsageError(f"{base}: has adapters itself; merge them into a plain run first (lm merge)")


def find_base_weights(checkpoint: Path, config: RunConfig) -> Path:
    """Return the file of the base weights of adapters; InputError if it is missing or has changed."""
    path = _run_of(checkpoint) / BASE_WEIGHTS
    if not path.is_file() or files.sha256(path) != config.base_sha256:
        raise InputError(f"{path}: missing, or not the weights that {checkpoint} adapts (another sha256)")
    return path


def load_config(folder: Path) -> RunConfig:
    """Load the config of a run or checkpoint; InputError if it is missing, damaged or of another format."""
    return _load(folder / CONFIG, RunConfig.from_dict)


def load_state(checkpoint: Path) -> TrainingState:
    """Load the progress of a checkpoint; InputError if it is missing or damaged."""
    return _load(checkpoint / STATE, partial(options.build_config, TrainingState))


def _load(path: Path, build: Callable[..., T]) -> T:
    try:
        return build(files.read_json(path), where=str(path))
    except UsageError as error:
        raise InputError(str(error)) from error


def count_parameters(folder: Path, file: str = MODEL) -> int:
    """Return the number of parameters in a weights file, from its header; InputError if it is damaged."""
    try:
        return sum(math.prod(tensor["shape"]) for tensor in read_tensor_header(folder / file)[0].values())
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError):
        raise InputError(f"{folder / file}: not a .safetensors file that can be read") from None


def read_tensor_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the dtype, shape and offsets of each tensor in a .safetensors file, and where the first begins."""
    with path.open("rb") as weights:
        size = int.from_bytes(weights.read(8), "little")
        header = msgspec.json.decode(weights.read(size))
    return {name: each for name, each in header.items() if name != "__metadata__"}, 8 + size


def verify_checkpoint(checkpoint: Path, *, to_train: bool = True) -> None:
    """Raise InputError unless the files of a checkpoint match the checksums in its manifest.

    Args:
        to_train: whether to verify the optimizer state too, which is up to twice as large as the weights.
    """
    for name, expected in _read_checksums(checkpoint).items():
        if name == OPTIMIZER and not to_train:
            continue
        if not (path := checkpoint / name).is_file() or files.sha256(path) != expected:
            problem = f"missing, or differs from its sha256 in {MANIFEST}"
            raise InputError(f"{path}: {problem}; the checkpoint is damaged, use another one")


def weights_key(checkpoint: Path) -> str:
    """Return a hash of the weights of a checkpoint, including base weights of adapters."""
    return _read_checksums(checkpoint)[MODEL] + (load_config(checkpoint).base_sha256 or "")


def _read_checksums(checkpoint: Path) -> dict[str, str]:
    """Return the checksums in a checkpoint's manifest, by file; InputError if it is damaged."""
    path = checkpoint / MANIFEST
    try:
        return dict(files.read_json(path)["sha256"])
    except (LookupError, TypeError, ValueError):
        raise InputError(f"{path}: not the manifest of a checkpoint; use another checkpoint") from None
