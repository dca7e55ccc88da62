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

import contextlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lm import files, safetensors_header
from lm.config import settings as options
from lm.config.run_config import RunConfig
from lm.errors import InputError, UsageError, list_some

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
_INITIAL_FILES = {
    CONFIG,
    CHECKPOINTS,
    METRICS,
    TIMINGS,
    DECISIONS,
    TENSORBOARD,
    BASE,
    BASE_WEIGHTS,
}


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

    step: int = 0
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    training_seconds: float = 0.0
    budget_seconds_used: float = 0.0
    best_loss: float | None = None
    best_bleu: float | None = None
    best_step: int | None = None
    evaluation_due: bool = False
    finished: bool = False


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
    _check_name(path)
    if is_checkpoint(path):
        return path
    if is_pointer(path):
        return find_checkpoint(path.parent, which="best" if path.name == BEST else "last")
    if not path.exists():
        raise _not_found_error(path)
    pointers: tuple[Pointer, ...] = (which, "last")
    for pointer in pointers:
        if (named := _named_checkpoint(path, pointer)) is not None:
            return named
    if checkpoints := list_checkpoints(path):
        return checkpoints[-1]
    if (path / CONFIG).is_file() and is_run(path):
        raise InputError(
            f"{path}: this run has no checkpoint yet, so there is nothing to use or to resume; train it again"
        )
    raise InputError(f"{path}: not a run (a folder that `lm train` made, with {CHECKPOINTS}/ in it)")


def _named_checkpoint(run: Path, pointer: Pointer) -> Path | None:
    """Return the checkpoint that `best` or `last` points to, or None; InputError if the best is missing."""
    if (name := read_pointer(run, pointer)) is None:
        return None
    named = run / pointer  # for the message: what the file holds may be anything, of any length
    if is_checkpoint_name(name):
        if (checkpoint := _find_complete(run, name)) is not None:
            return checkpoint
        named = run / CHECKPOINTS / name
    if pointer == "best" and (others := list_checkpoints(run)):
        raise InputError(f"{named}: the best checkpoint is missing; name another one, such as {others[-1]}")
    return None


def _find_complete(run: Path, name: str) -> Path | None:
    """Return a complete checkpoint by name, also while it is being moved into place; None if it is missing."""
    named = run / CHECKPOINTS / name
    hidden = (folder for folder, destination in hidden_checkpoints(run) if destination == named)
    candidates = itertools.chain([named], hidden, [named])  # again, since another process may just have put it in place
    return next((candidate for candidate in candidates if (candidate / MANIFEST).is_file()), None)


def _not_found_error(path: Path) -> InputError:
    """Return the error for a missing run or checkpoint, with suggestions."""
    if path.parent.name == CHECKPOINTS and (checkpoints := list_checkpoints(path.parent.parent)):
        return InputError(f"{path}: no such checkpoint; there is {', '.join(folder.name for folder in checkpoints)}")
    runs = [checkpoints.parent.name for checkpoints in path.parent.glob(f"*/{CHECKPOINTS}")]
    near = options.find_nearest(path.name, runs)
    return InputError(f"{path}: no such run" + (f" (did you mean {str(path.parent / near)!r}?)" if near else ""))


def _check_name(folder: Path) -> None:
    """Raise InputError for a name that is not UTF-8, which safetensors cannot read."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(f"{folder}: the name of a run must be valid UTF-8; choose another name") from None


def find_run(path: Path) -> Path:
    """Return the run of a path, which may be a checkpoint; InputError if there is none."""
    if is_run(path):
        return path
    checkpoint = find_checkpoint(path, which="last")
    if checkpoint.parent.name != CHECKPOINTS:
        raise InputError(f"{path}: not in the {CHECKPOINTS}/ of a run; give a run or a checkpoint in one")
    return checkpoint.parent.parent


def find_tokenizer(path: Path) -> Path:
    """Return a tokenizer file: itself, in a folder, or in the last checkpoint of a run.

    Raises:
        InputError: the folder has none.
    """
    if is_pointer(path):
        return find_checkpoint(path) / TOKENIZER
    if not path.is_dir():
        return path
    last = read_pointer(path, "last")
    folders = [path, *([path / CHECKPOINTS / last] if last and is_checkpoint_name(last) else [])]
    tokenizer = next((folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()), None)
    if tokenizer is None:
        raise InputError(f"{path}: no {TOKENIZER} in this folder, and it is no run with {CHECKPOINTS}")
    return tokenizer


def refuse_existing(folder: Path, *, can_resume: bool = False) -> None:
    """Raise InputError if a folder holds a run or other files, or cannot be created.

    Args:
        can_resume: whether the message suggests to resume an existing run.
    """
    _check_name(folder)
    if any(folder.glob(f"{CHECKPOINTS}/{STEP}*")):
        problem = f"{folder}: holds a run already; choose another folder"
        if can_resume:
            raise InputError(f"{problem}, or resume it")
        raise InputError(problem)
    files.check_folder(folder)
    if (others := _visible_files(folder)) and not _is_unsaved_run(folder):
        some = list_some(others, limit=3)
        raise InputError(f"{folder}: holds what is no run's ({some}); choose an empty or a new folder")


def _visible_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))


def _is_unsaved_run(folder: Path) -> bool:
    """Whether a folder holds only what a run writes before its first checkpoint."""
    is_expected = set(_visible_files(folder)) <= _INITIAL_FILES
    if not is_expected or not is_run(folder) or _visible_files(folder / CHECKPOINTS):
        return False
    try:
        return not (folder / CONFIG).exists() or bool(load_config(folder))
    except InputError:
        return False


def load_config(folder: Path) -> RunConfig:
    """Load the config of a run or checkpoint; InputError if it is missing, damaged or of another format."""
    path = folder / CONFIG
    with _as_input_error():
        return RunConfig.from_dict(files.read_json(path), where=str(path))


def load_state(checkpoint: Path) -> TrainingState:
    """Load the progress of a checkpoint; InputError if it is missing or damaged."""
    path = checkpoint / STATE
    with _as_input_error():
        state = options.build_config(TrainingState, files.read_json(path), where=str(path))
    for name, value in vars(state).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}: {name} must be a finite number, not {value}; use another checkpoint")
        if isinstance(value, int) and value < 0:
            raise InputError(f"{path}: {name} must be at least 0, not {value}; use another checkpoint")
    return state


@contextlib.contextmanager
def _as_input_error() -> Iterator[None]:
    """Within the context, UsageErrors become InputErrors, because lm wrote the file."""
    try:
        yield
    except UsageError as error:
        raise InputError(str(error)) from error


def count_parameters(folder: Path, file: str = MODEL) -> int:
    """Return the number of parameters in a weights file, from its header; InputError if it is damaged."""
    return sum(math.prod(entry.shape) for entry in safetensors_header.read_tensor_header(folder / file).values())


def verify_checkpoint(checkpoint: Path, *, to_train: bool = True) -> None:
    """Raise InputError unless the files of a checkpoint match the checksums in its manifest.

    Args:
        to_train: whether to verify the optimizer state too, which is up to twice as large as the weights.
    """
    for name, expected in _read_checksums(checkpoint).items():
        if name == OPTIMIZER and not to_train:
            continue
        path = checkpoint / name
        if not path.is_file():
            raise InputError(f"{path}: missing; the checkpoint is damaged, use another one")
        if files.sha256(path) != expected:
            raise InputError(
                f"{path}: differs from its sha256 in {MANIFEST}; the checkpoint is damaged, use another one"
            )


def weights_key(checkpoint: Path) -> str:
    """Return a hash of the weights of a checkpoint, including base weights of adapters."""
    return _read_checksums(checkpoint)[MODEL] + (load_config(checkpoint).base_sha256 or "")


def _read_checksums(checkpoint: Path) -> dict[str, str]:
    """Return the checksums in a checkpoint's manifest, by file; InputError unless it is complete."""
    values = files.read_json(checkpoint / MANIFEST)
    sums = values.get("sha256") if isinstance(values, dict) else None
    expected = {CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE}
    is_whole = isinstance(sums, dict) and expected <= sums.keys()
    if not isinstance(sums, dict) or not is_whole or not all(isinstance(checksum, str) for checksum in sums.values()):
        problem = "not the manifest of a checkpoint; the checkpoint is damaged, use another one"
        raise InputError(f"{checkpoint / MANIFEST}: {problem}")
    return sums
