"""Runs as their folders tell of them, without torch: how far they came, and the curves of their journals."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm import run_folder
from lm.base import named_base, own_weights
from lm.config.run import RunConfig
from lm.errors import InputError
from lm.locks import is_locked
from lm.run_folder import TrainingState
from lm.training.journal import EXPERT_USE, lines, step_of


@dataclass(frozen=True)
class Summary:
    """One run at a glance.

    Attributes:
        folder: the folder of the run.
        config: its settings and its plan.
        state: how far it had come at its last checkpoint; without one, at its start.
        parameters: number of parameters of its model, its base's among them; 0 where it has no checkpoint yet.
        trained: how many of them it has trained: all, but where it has adapters.
        base: the checkpoint that its adapters belong to, if it has some.
        changed: when its journal or checkpoint was last written, in seconds since 1970.
        bits_per_byte: of its best checkpoint on the held-out split; None where that is not known.
        running: the last step that its log tells of, if a process is training it just now.
    """

    folder: Path
    config: RunConfig
    state: TrainingState
    parameters: int
    trained: int
    base: str | None
    changed: float
    bits_per_byte: float | None = None
    running: int | None = None

    @property
    def origin(self) -> str:
        """What it started from: a preset, `from` and a run, or `import` and a kind of model; – where nothing tells."""
        told = run_folder.pointed_to(self.folder, "origin")
        return told or (run_folder.from_run(Path(self.base)) if self.base else self.config.preset or "–")

    @property
    def steps(self) -> int:
        """Optimizer steps planned."""
        return self.config.plan.steps if self.config.plan else self.state.step


def runs(folder: Path) -> tuple[list[Summary], list[str]]:
    """The runs in a folder, those changed last at the end, and what is wrong with others.

    A run without a checkpoint counts while it is trained.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: " + ("is a file, not a folder of runs" if folder.exists() else "no such folder"))
    found, damaged = [], []
    for path in folder.iterdir():
        if run_folder.checkpoints(path) or ((path / run_folder.CONFIG).is_file() and _is_running(path)):
            try:
                found.append(summarise(path))
            except InputError as error:
                damaged.append(str(error))
            except OSError as error:
                damaged.append(f"{error.filename or path}: {error.strerror}")
    return sorted(found, key=lambda summary: summary.changed), damaged


def summarise(run: Path) -> Summary:
    """One run at a glance; InputError if the folder is no run or is damaged."""
    log, is_running = run / run_folder.METRICS, _is_running(run)
    if is_running and not run_folder.checkpoints(run):
        config, changed = run_folder.load_config(run), (run / run_folder.CONFIG).stat().st_mtime
        return Summary(run, config, TrainingState(), 0, 0, None, changed, running=_last_step(log))
    last = run_folder.find_checkpoint(run, which="last")
    config, state = run_folder.load_config(last), run_folder.load_state(last)
    changed = max(path.stat().st_mtime for path in (last, log) if path.exists())
    trained = run_folder.count_parameters(last)
    base = named_base(last) if config.lora else None
    of_base = _of_base(last, base) if config.lora else 0
    bits = None if state.best_step is None else _bits_per_byte(log, state.best_step)
    running = _last_step(log) if is_running else None
    return Summary(run, config, state, trained + of_base, trained, base, changed, bits, running)


def _is_running(run: Path) -> bool:
    """Whether a process is training a run just now."""
    return is_locked(run / run_folder.LOCK)


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    """The entries of a log, from the last to the first, without those that are damaged."""
    for line in reversed(lines(log) if log.is_file() else []):
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            entry = json.loads(line)
            step_of(entry)
            yield entry


def _last_step(log: Path) -> int:
    """The step of the last entry of a log; 0 without any."""
    return next((entry["step"] for entry in _entries(log)), 0)


def _bits_per_byte(log: Path, step: int) -> float | None:
    """That of the evaluation after a step."""
    found = (entry[_BITS] for entry in _entries(log) if entry["step"] == step and _BITS in entry)
    bits = next(found, None)
    return float(bits) if isinstance(bits, (int, float)) and math.isfinite(bits) else None


def _of_base(checkpoint: Path, base: str | None) -> int:
    """The parameters of the base of a checkpoint; none where it is gone."""
    if (own := own_weights(checkpoint)) is not None:
        return run_folder.count_parameters(own.parent, own.name)
    return run_folder.count_parameters(Path(base)) if base and run_folder.is_checkpoint(Path(base)) else 0


def improved(config: RunConfig, state: TrainingState) -> bool | None:
    """Whether training has made a model better than it began: than another run's weights, or before it was extended.

    Args:
        config: of the last checkpoint, with its plan.
        state: of the same.

    Returns:
        None where nothing was evaluated.
    """
    if state.best_step is None:
        return None
    extended_at = config.plan.extended_at if config.plan is not None else None
    return state.best_step > (extended_at or 0)


def newest_unfinished(folder: Path) -> Path:
    """The run in a folder of runs that was changed last and has steps left; InputError if there is none."""
    unfinished = [each.folder for each in runs(folder)[0] if not each.state.finished and each.parameters]
    if not unfinished:
        raise InputError(f"{folder}: no unfinished run in this folder")
    return unfinished[-1]


_BITS = "validation_bits_per_byte"
_LARGEST = 1e300


@dataclass(frozen=True)
class Curve:
    """A quantity over the steps of a run."""

    steps: list[int] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)


def curves(run: Path) -> dict[str, Curve]:
    """The finite numbers in a run's journals, by name: loss, validation_loss, learning_rate and more.

    Numbers so large that the distance of two would overflow are left out, as infinite ones are.
    """
    found: dict[str, Curve] = {}
    for name in (run_folder.METRICS, run_folder.TIMINGS):
        if not (run / name).is_file():
            raise InputError(f"{run / name}: no such file; is {run} a run?")
        for number, line in enumerate(lines(run / name), 1):
            try:
                values = json.loads(line)
                step = step_of(values)
                del values["step"]
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise InputError(f"{run / name}, line {number}: not an entry of a journal") from None
            for key, value in values.items():
                if isinstance(value, (int, float)) and abs(value) <= _LARGEST and math.isfinite(value):
                    curve = found.setdefault(key, Curve())
                    curve.steps.append(step)
                    curve.values.append(float(value))
    return found


def expert_use(run: Path, *, step: int) -> dict[str, list[float]]:
    """The share of the tokens that each expert took, by layer, at the last evaluation up to a step; {} without any."""
    path = run / run_folder.METRICS
    found: dict[str, list[float]] = {}
    for line in lines(path) if path.is_file() else []:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            entry = json.loads(line)
            if step_of(entry) <= step:
                found = {layer: [float(share) for share in shares] for layer, shares in entry[EXPERT_USE].items()}
    return found
