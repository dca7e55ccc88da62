"""The folder of a run: the names in it, which checkpoint is meant, and what can be read of it without torch.

RUN/config.json                  the settings and the plan of the run, with a format_version
RUN/metrics.jsonl                what was learned; RUN/timings.jsonl: how fast
RUN/decisions.jsonl              what chose each setting, and what was chosen otherwise later
RUN/tensorboard/                 the same curves for TensorBoard, where that was asked for
RUN/last, RUN/best               one line each: the name of a checkpoint
RUN/base                         one line: where the checkpoint is whose weights this run's adapters belong to
RUN/base.safetensors             a hard link to those weights, or a copy of them
RUN/origin                       one line, unless its first weights were random: `from RUN`, or `import` and the kind
                                 of model that it was elsewhere
RUN/.lock                        locked while the run is trained; empty
RUN/checkpoints/step-N/          config.json  tokenizer.json  model.safetensors  optimizer.safetensors  state.json
                                 manifest.json: sha256 of each, written last
                                 source_tokenizer.json: only of an encoder-decoder with separate vocabularies
RUN/checkpoints/.step-N.replaced the checkpoint step-N while another takes its name
RUN/checkpoints/.step-N.after-M  a complete checkpoint of a run that was resumed at step M, while the checkpoints after
                                 step M, which are of another branch, are removed
RUN/.metrics.jsonl.before        the log of the other branch, until this one has saved a checkpoint; for timings too

No other module spells these names.
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

from lm import files, tensor_file
from lm.config import options
from lm.config.run import RunConfig
from lm.errors import InputError, UsageError

CONFIG, TOKENIZER, SOURCE_TOKENIZER = "config.json", "tokenizer.json", "source_tokenizer.json"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
MANIFEST = "manifest.json"
CHECKPOINTS, STEP = "checkpoints", "step-"
METRICS, TIMINGS, TENSORBOARD = "metrics.jsonl", "timings.jsonl", "tensorboard"
DECISIONS = "decisions.jsonl"
BEST, LAST, BASE, ORIGIN = "best", "last", "base", "origin"
BASE_WEIGHTS = "base.safetensors"
LOCK = ".lock"

Pointer = Literal["best", "last"]
"""The files of a run that name one of its checkpoints."""

_CHECKPOINT_NAME = re.compile(rf"{STEP}[0-9]+")
FIRST_OF_BRANCH = ".after-"
_HIDDEN_NAME = re.compile(rf"\.({STEP}[0-9]+)(?:\.replaced|{re.escape(FIRST_OF_BRANCH)}([0-9]+))")
_BEFORE_THE_FIRST_CHECKPOINT = {
    CONFIG,
    CHECKPOINTS,
    METRICS,
    TIMINGS,
    DECISIONS,
    TENSORBOARD,
    BASE,
    BASE_WEIGHTS,
    ORIGIN,
}


@dataclass(frozen=True)
class TrainingState:
    """How far a run has come; `state.json` of a checkpoint is this, as JSON.

    Attributes:
        step: optimizer steps taken.
        samples: windows, examples or pairs consumed; with the seed, this is the place in the data.
        tokens: tokens trained on.
        flops: arithmetic spent on them.
        seconds: time spent training, evaluations aside.
        elapsed: seconds of a budget that are gone, until the decay of the learning rate has begun.
        best_loss: validation loss of the best checkpoint, nats per token.
        best_bleu: BLEU of the best checkpoint, of an encoder-decoder.
        best_step: the step of the best checkpoint.
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


def is_run(path: Path) -> bool:
    """Whether a folder is a run's, be it one without a checkpoint yet."""
    return (path / CHECKPOINTS).is_dir()


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, in no order; OSError if it cannot be read."""
    return [path for path in folder.iterdir() if is_run(path)]


def holds_runs(folder: Path) -> bool:
    """Whether a folder is no run itself, and has runs in it."""
    return folder.is_dir() and not (folder / CHECKPOINTS).exists() and any(folder.glob(f"*/{CHECKPOINTS}"))


def is_journal(path: Path) -> bool:
    """Whether a file is one of the logs of a run."""
    return path.name in (METRICS, TIMINGS, DECISIONS) and is_run(path.parent)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a complete checkpoint itself."""
    return (path / MANIFEST).is_file() and (path / MODEL).is_file()


def is_name_of_checkpoint(name: str) -> bool:
    """Whether a checkpoint of a run can be called so; a copy such as step-20-backup is not one of the run's."""
    return _CHECKPOINT_NAME.fullmatch(name) is not None


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint after a step is, or would be."""
    return run / CHECKPOINTS / f"{STEP}{step}"


def replaced(checkpoint: Path) -> Path:
    """Where a checkpoint is kept while another takes its name."""
    return checkpoint.with_name(f".{checkpoint.name}.replaced")


def first_of_branch(checkpoint: Path, *, resumed_at: int) -> Path:
    """Where the first checkpoint of a branch is until those of the other branch are removed."""
    return checkpoint.with_name(f".{checkpoint.name}{FIRST_OF_BRANCH}{resumed_at}")


def hidden_checkpoints(run: Path) -> Iterator[tuple[Path, Path, int | None]]:
    """The checkpoints that do not have their names at the moment: each with its place, and the M of `.after-M`."""
    for folder in sorted((run / CHECKPOINTS).glob(f".{STEP}*")):
        if (found := _HIDDEN_NAME.fullmatch(folder.name)) is not None:
            name, resumed_at = found.groups()
            yield folder, folder.with_name(name), None if resumed_at is None else int(resumed_at)


def set_aside(log: Path) -> Path:
    """Where a log of another branch is kept."""
    return log.with_name(f".{log.name}.before")


def begun_from(run: Path, other: Path) -> None:
    """Note that a run began with the weights of another one, or of one of its checkpoints."""
    files.replace_text(run / ORIGIN, f"{from_run(other)}\n")


def from_run(path: Path) -> str:
    """`from` and the name of a run, or of the one that a path names a checkpoint of."""
    return f"from {(path.parent.parent if path.parent.name == CHECKPOINTS else path).resolve().name}"


def imported_as(run: Path, kind: str) -> None:
    """Note that a run is a model of some kind that was trained elsewhere."""
    files.replace_text(run / ORIGIN, f"import {kind}\n")


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint of a run, by its name."""
    return int(checkpoint.name.removeprefix(STEP))


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [manifest.parent for manifest in run.glob(f"{CHECKPOINTS}/{STEP}*/{MANIFEST}")]
    return sorted((folder for folder in found if is_name_of_checkpoint(folder.name)), key=step_of)


def later_than(run: Path, step: int) -> list[Path]:
    """The complete checkpoints of a run that come after a step, oldest first."""
    return [folder for folder in checkpoints(run) if step_of(folder) > step]


def pointed_to(run: Path, pointer: Pointer | Literal["base", "origin"]) -> str | None:
    """What the file `best`, `last`, `base` or `origin` of a run holds, whatever that is; None without such a file."""
    path = run / pointer
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


def lost_last(run: Path) -> str | None:
    """The name of the checkpoint that a run calls its last, if that is gone."""
    name = pointed_to(run, "last")
    return name if name is not None and is_name_of_checkpoint(name) and _complete(run, name) is None else None


def find_checkpoint(path: Path, *, which: Pointer = "best") -> Path:
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
    pointers: tuple[Pointer, ...] = (which, "last")
    for pointer in pointers:
        if (named := _named_checkpoint(path, pointer)) is not None:
            return named
    if found := checkpoints(path):
        return found[-1]
    if (path / CONFIG).is_file() and is_run(path):
        raise InputError(
            f"{path}: this run has no checkpoint yet, so there is nothing to use or to resume; train it again"
        )
    raise InputError(f"{path}: not a run (a folder that `lm train` made, with {CHECKPOINTS}/ in it)")


def _named_checkpoint(run: Path, pointer: Pointer) -> Path | None:
    """The complete checkpoint that `best` or `last` names; None if it names none. InputError if the best is gone."""
    if (name := pointed_to(run, pointer)) is None:
        return None
    named = run / pointer  # for the message: what the file holds may be anything, of any length
    if is_name_of_checkpoint(name):
        if (found := _complete(run, name)) is not None:
            return found
        named = run / CHECKPOINTS / name
    if pointer == "best" and (others := checkpoints(run)):
        raise InputError(f"{named}: the best checkpoint is missing; name another one, such as {others[-1]}")
    return None


def _complete(run: Path, name: str) -> Path | None:
    """The complete checkpoint of a name, wherever it is while it is replaced or put in place; None if it is gone."""
    named = run / CHECKPOINTS / name
    hidden = (folder for folder, place, _ in hidden_checkpoints(run) if place == named)
    places = itertools.chain([named], hidden, [named])  # again, since another process may just have put it in place
    return next((place for place in places if (place / MANIFEST).is_file()), None)


def _missing(path: Path) -> InputError:
    """The error for a run or checkpoint that is not there, with what may have been meant."""
    if path.parent.name == CHECKPOINTS and (found := checkpoints(path.parent.parent)):
        return InputError(f"{path}: no such checkpoint; there is {', '.join(folder.name for folder in found)}")
    runs = [found.parent.name for found in path.parent.glob(f"*/{CHECKPOINTS}")]
    near = options.find_nearest(path.name, runs)
    return InputError(f"{path}: no such run" + (f" (did you mean {str(path.parent / near)!r}?)" if near else ""))


def _check_name(folder: Path) -> None:
    """InputError for a name that is not UTF-8: safetensors cannot read a file that is called so."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(f"{folder}: the name of a run must be valid UTF-8; choose another name") from None


def run_of(path: Path) -> Path:
    """The run that a path names, or of which it names a checkpoint; InputError if there is none."""
    if is_run(path):
        return path
    found = find_checkpoint(path, which="last")
    if found.parent.name != CHECKPOINTS:
        raise InputError(
            f"{path}: not in the {CHECKPOINTS}/ of a run; give a run or a checkpoint in one", settings=["resume"]
        )
    return found.parent.parent


def find_tokenizer(path: Path) -> Path:
    """The file of a tokenizer: itself, in a folder of any kind, or in the last checkpoint of a run.

    Raises:
        InputError: it is a folder without one.
    """
    if not path.is_dir():
        return path
    last = pointed_to(path, "last")
    folders = [path, *([path / CHECKPOINTS / last] if last and is_name_of_checkpoint(last) else [])]
    found = next((folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()), None)
    if found is None:
        raise InputError(f"{path}: no {TOKENIZER} in this folder, and it is no run with {CHECKPOINTS}")
    return found


def refuse_existing(folder: Path, *, can_resume: bool = False) -> None:
    """InputError if a folder holds a run or anything else, or cannot be made: nothing is written over.

    Args:
        folder: of the new run.
        can_resume: whether a run that is there could be resumed instead, for the message.
    """
    _check_name(folder)
    if any(folder.glob(f"{CHECKPOINTS}/{STEP}*")):
        problem, instead = f"{folder}: holds a run already; choose another folder", (f"resume={folder}",)
        if can_resume:
            raise InputError(f"{problem}, or resume it", settings=("out", *instead))
        raise InputError(problem, settings=("out",))
    files.check_folder(folder)
    if (others := _visible(folder)) and not _is_begun(folder):
        some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        raise InputError(
            f"{folder}: holds what is no run's ({some}); choose an empty or a new folder", settings=("out",)
        )


def _visible(folder: Path) -> list[str]:
    """The names in a folder, those of hidden files left out."""
    return sorted(path.name for path in folder.glob("[!.]*"))


def _is_begun(folder: Path) -> bool:
    """Whether a folder holds what a run writes before its first checkpoint, and nothing else."""
    is_expected = set(_visible(folder)) <= _BEFORE_THE_FIRST_CHECKPOINT
    if not is_expected or not is_run(folder) or _visible(folder / CHECKPOINTS):
        return False
    try:
        return not (folder / CONFIG).exists() or bool(load_config(folder))
    except InputError:
        return False


def load_config(folder: Path) -> RunConfig:
    """The settings in a run or checkpoint folder; InputError if they are missing, damaged or of a newer format."""
    path = folder / CONFIG
    with _damage():
        return RunConfig.from_dict(files.read_json(path), where=str(path))


def load_state(checkpoint: Path) -> TrainingState:
    """How far the run was at a checkpoint; InputError if that is missing or damaged."""
    path = checkpoint / STATE
    with _damage():
        state = options.build_config(TrainingState, files.read_json(path), where=str(path))
    for name, value in vars(state).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}: {name} must be a finite number, not {value}; use another checkpoint")
        if isinstance(value, int) and value < 0:
            raise InputError(f"{path}: {name} must be at least 0, not {value}; use another checkpoint")
    return state


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """While open, a wrong value is an error of a file that lm wrote, not of how a flag was used."""
    try:
        yield
    except UsageError as error:
        raise InputError(str(error)) from error


def count_parameters(folder: Path, file: str = MODEL) -> int:
    """Parameters in the weights of a checkpoint, or in another file, by its header; InputError if it is damaged."""
    return sum(math.prod(entry.shape) for entry in tensor_file.entries(folder / file).values())


def verify(checkpoint: Path, *, to_train: bool = True) -> None:
    """InputError unless the files of a checkpoint are what was written, by the sums in its manifest.

    Args:
        checkpoint: the folder.
        to_train: whether training continues from it, which reads the optimizer: up to twice the weights.
    """
    for name, expected in _sums(checkpoint).items():
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
    """A hash of the weights of a checkpoint, with those that its adapters belong to; InputError if it is damaged."""
    return _sums(checkpoint)[MODEL] + (load_config(checkpoint).base_sha256 or "")


def _sums(checkpoint: Path) -> dict[str, str]:
    """The sums in a checkpoint's manifest, by file; InputError unless it has them all."""
    values = files.read_json(checkpoint / MANIFEST)
    sums = values.get("sha256") if isinstance(values, dict) else None
    expected = {CONFIG, TOKENIZER, MODEL, OPTIMIZER, STATE}
    is_whole = isinstance(sums, dict) and expected <= sums.keys()
    if not isinstance(sums, dict) or not is_whole or not all(isinstance(each, str) for each in sums.values()):
        problem = "not the manifest of a checkpoint; the checkpoint is damaged, use another one"
        raise InputError(f"{checkpoint / MANIFEST}: {problem}")
    return sums
