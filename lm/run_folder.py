"""The layout of run folders: file names, pointers to checkpoints, config and state, without torch.

RUN/config.json                  the settings and the plan of the run, with a format_version
RUN/metrics.jsonl                what was learned; RUN/timings.jsonl: how fast
RUN/decisions.jsonl              what chose each setting, and what was chosen otherwise later
RUN/tensorboard/                 TensorBoard files, if enabled
RUN/last, RUN/best               one line each: the name of a checkpoint
RUN/base                         one line: where the checkpoint is whose weights this run's adapters belong to
RUN/base.safetensors             a hard link to those weights, or a copy of them
RUN/.lock                        locked while the run is trained; empty
RUN/checkpoints/step-N/          config.json  tokenizer.json  model.safetensors  optimizer.safetensors  state.json
                                 manifest.json: sha256 of each, written last
                                 tokenizer_config.json: chat template and special tokens, if there are any
                                 source_tokenizer.json: only of an encoder-decoder with separate vocabularies
RUN/checkpoints/.step-N.replaced the checkpoint step-N while another takes its name

No other module contains these names.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lm import files
from lm.config import settings as options
from lm.config.run_config import RunConfig
from lm.config.settings import Positive
from lm.errors import InputError, UsageError, list_some

_MAX_HEADER = 100_000_000  # bytes, as of the format
RUNS = Path("runs")
"""The folder of runs that have no other."""
CONFIG, TOKENIZER, SOURCE_TOKENIZER = "config.json", "tokenizer.json", "source_tokenizer.json"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
MANIFEST = "manifest.json"
CHECKPOINTS, STEP = "checkpoints", "step-"
METRICS, TIMINGS, TENSORBOARD = "metrics.jsonl", "timings.jsonl", "tensorboard"
DECISIONS = "decisions.jsonl"
BEST, LAST, BASE = "best", "last", "base"
BASE_WEIGHTS = "base.safetensors"
LOCK = ".lock"

Pointer = Literal["best", "last"]
"""Files of a run that name one of its checkpoints."""

_CHECKPOINT_NAME = re.compile(rf"{STEP}[0-9]+")
_HIDDEN_NAME = re.compile(rf"\.({STEP}[0-9]+)\.replaced")
_Total = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class TrainingState:
    """Progress of a run; saved as `state.json` of a checkpoint.

    Attributes:
        samples: windows, examples or pairs consumed; with the seed, the position in the data.
        training_seconds: without evaluations.
        budget_seconds_used: seconds of a budget used, until the learning rate starts to decay.
        best_loss: validation loss of the best checkpoint, in nats per token.
        best_bleu: BLEU of the best checkpoint, for encoder-decoders.
        evaluation_due: whether the last step is still to be followed by an evaluation, for instance after stopping.
    """

    step: _Total = 0
    samples: _Total = 0
    tokens: _Total = 0
    flops: Positive = 0.0
    training_seconds: Positive = 0.0
    budget_seconds_used: Positive = 0.0
    best_loss: Positive | None = None
    best_bleu: Positive | None = None
    best_step: _Total | None = None
    evaluation_due: bool = False
    finished: bool = False


class _Manifest(msgspec.Struct):
    sha256: dict[str, str]


def is_run(path: Path) -> bool:
    """Whether a folder is a run, possibly without a checkpoint."""
    return (path / CHECKPOINTS).is_dir()


def list_run_folders(folder: Path) -> list[Path]:
    """Return the runs in a folder, unordered; OSError if it cannot be read."""
    return [path for path in folder.iterdir() if is_run(path)]


def contains_runs(folder: Path) -> bool:
    """Whether a folder is not a run, but contains runs."""
    return folder.is_dir() and not (folder / CHECKPOINTS).exists() and any(folder.glob(f"*/{CHECKPOINTS}"))


def is_log(path: Path) -> bool:
    """Whether a file is a log of a run."""
    return path.name in (METRICS, TIMINGS, DECISIONS) and is_run(path.parent)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a complete checkpoint."""
    return (path / MANIFEST).is_file() and (path / MODEL).is_file()


def is_pointer(path: Path) -> bool:
    """Whether a path is the file of a run that names its best or last checkpoint."""
    return path.name in (BEST, LAST) and path.is_file() and is_run(path.parent)


def is_checkpoint_name(name: str) -> bool:
    """Whether a name is that of a checkpoint; not of a copy such as step-20-backup."""
    return _CHECKPOINT_NAME.fullmatch(name) is not None


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"{STEP}{step}"


def replaced_checkpoint_path(checkpoint: Path) -> Path:
    """Return where a checkpoint is moved while another one replaces it."""
    return checkpoint.with_name(f".{checkpoint.name}.replaced")


def hidden_checkpoints(run: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the checkpoints that another one is replacing, with their path before."""
    for folder in sorted((run / CHECKPOINTS).glob(f".{STEP}*")):
        if (match := _HIDDEN_NAME.fullmatch(folder.name)) is not None:
            yield folder, folder.with_name(match[1])


def _run_of(path: Path) -> Path:
    """Return the run of a run or checkpoint."""
    if is_pointer(path):
        return path.parent
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


def read_pointer(run: Path, pointer: Pointer | Literal["base"]) -> str | None:
    """Return the content of `best`, `last` or `base` of a run; None if there is no such file."""
    path = run / pointer
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


def find_checkpoint(path: Path, *, which: Pointer = "best") -> Path:
    """Return the checkpoint of a path: itself, or the best or last one of a run.

    Args:
        path: a run folder, a checkpoint folder, or the file `best` or `last` of a run.
        which: "best" (the last if no best is known) or "last" (the latest complete one).

    Raises:
        InputError: there is none, or the best one is missing.
    """
    if is_checkpoint(path):
        return path
    if is_pointer(path):
        return find_checkpoint(path.parent, which="best" if path.name == BEST else "last")
    checkpoints = list_checkpoints(path)
    pointers: tuple[Pointer, ...] = (which, "last")
    for pointer in pointers:
        name = read_pointer(path, pointer)
        if name and is_checkpoint_name(name) and (checkpoint := _find_complete(path, name)) is not None:
            return checkpoint
        if name and pointer == "best" and checkpoints:
            raise InputError(
                f"{path / BEST}: the best checkpoint is missing; name another one, such as {checkpoints[-1]}"
            )
    if checkpoints:
        return checkpoints[-1]
    if is_run(path):
        raise InputError(f"{path}: this run has no checkpoint yet; train it again")
    problem = (
        f"not a run (a folder that `lm train` made, with {CHECKPOINTS}/ in it)" if path.exists() else "no such run"
    )
    raise InputError(f"{path}: {problem}")


def _find_complete(run: Path, name: str) -> Path | None:
    """Return a complete checkpoint by name, also while it is being moved into place; None if it is missing."""
    named = run / CHECKPOINTS / name
    hidden = (folder for folder, destination in hidden_checkpoints(run) if destination == named)
    candidates = itertools.chain([named], hidden, [named])  # again, since another process may just have put it in place
    return next((candidate for candidate in candidates if (candidate / MANIFEST).is_file()), None)


def find_tokenizer(path: Path) -> Path:
    """Return a tokenizer file: itself, in a folder, or in the last checkpoint of a run.

    Raises:
        InputError: the folder has none.
    """
    if not path.is_dir() and not is_pointer(path):
        return path
    own = path / TOKENIZER
    return own if own.is_file() else find_checkpoint(path, which="last") / TOKENIZER


def refuse_existing(folder: Path, *, can_resume: bool = False) -> None:
    """Raise InputError if a folder holds a run or other files, or cannot be created.

    Args:
        can_resume: whether the message suggests to resume an existing run.
    """
    if any(folder.glob(f"{CHECKPOINTS}/{STEP}*")):
        raise InputError(f"{folder}: holds a run already; choose another folder{', or resume it' * can_resume}")
    try:
        files.check_folder(folder)
        str(folder).encode()
    except UnicodeEncodeError:  # safetensors could not write to it
        raise InputError(f"{folder}: the name of a run must be valid UTF-8; choose another name") from None
    if not is_run(folder) and (others := sorted(path.name for path in folder.glob("[!.]*"))):
        some = list_some(others, limit=3)
        raise InputError(f"{folder}: holds what is no run's ({some}); choose an empty or a new folder")


def load_config(folder: Path) -> RunConfig:
    """Load the config of a run or checkpoint; InputError if it is missing, damaged or of another format."""
    path = folder / CONFIG
    try:
        return RunConfig.from_dict(files.read_json(path), where=str(path))
    except UsageError as error:
        raise InputError(str(error)) from error


def load_state(checkpoint: Path) -> TrainingState:
    """Load the progress of a checkpoint; InputError if it is missing or damaged."""
    path = checkpoint / STATE
    try:
        return options.build_config(TrainingState, files.read_json(path), where=str(path))
    except UsageError as error:
        raise InputError(str(error)) from error


def count_parameters(folder: Path, file: str = MODEL) -> int:
    """Return the number of parameters in a weights file, from its header; InputError if it is damaged."""
    try:
        with (folder / file).open("rb") as weights:
            size = int.from_bytes(weights.read(8), "little")
            header = msgspec.json.decode(weights.read(min(size, _MAX_HEADER)))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{folder / file}: not a .safetensors file that can be read ({error})") from None


def verify_checkpoint(checkpoint: Path, *, to_train: bool = True) -> None:
    """Raise InputError unless the files of a checkpoint match the checksums in its manifest.

    Args:
        to_train: whether to verify the optimizer state too, which is up to twice as large as the weights.
    """
    for name, expected in _read_checksums(checkpoint).items():
        if name == OPTIMIZER and not to_train:
            continue
        path = checkpoint / name
        if not path.is_file() or files.sha256(path) != expected:
            problem = f"differs from its sha256 in {MANIFEST}" if path.is_file() else "missing"
            raise InputError(f"{path}: {problem}; the checkpoint is damaged, use another one")


def weights_key(checkpoint: Path) -> str:
    """Return a hash of the weights of a checkpoint, including base weights of adapters."""
    return _read_checksums(checkpoint)[MODEL] + (load_config(checkpoint).base_sha256 or "")


def _read_checksums(checkpoint: Path) -> dict[str, str]:
    """Return the checksums in a checkpoint's manifest, by file; InputError unless it is complete."""
    path = checkpoint / MANIFEST
    try:
        sums = msgspec.convert(files.read_json(path), _Manifest).sha256
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InputError(f"{path}: not the manifest of a checkpoint ({error}); use another checkpoint") from None
    if missing := {CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE} - sums.keys():
        raise InputError(f"{path}: lacks {min(missing)}; the checkpoint is damaged, use another one")
    return sums
