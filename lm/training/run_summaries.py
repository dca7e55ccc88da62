"""Summaries and curves of runs, read from their folders without torch."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm import run_folder
from lm.adapter_base import read_base_path
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.locks import is_locked
from lm.run_folder import TrainingState
from lm.training.run_log import EXPERT_USE, entry_step, read_last, read_lines


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run.

    Attributes:
        state: progress at the last checkpoint, or at the start.
        parameters: of the model, including the base of adapters; 0 before the first checkpoint.
        base: checkpoint that its adapters belong to, if any.
        modified_at: time of the last write, in seconds since 1970.
        bits_per_byte: of the best checkpoint on the held-out split; None if not known.
        accuracy: of a classifier, as `bits_per_byte`.
        running_step: last logged step, if a process is training the run now.
    """

    folder: Path
    config: RunConfig
    state: TrainingState
    parameters: int
    trainable_parameters: int
    base: str | None
    modified_at: float
    bits_per_byte: float | None = None
    accuracy: float | None = None
    running_step: int | None = None

    @property
    def origin(self) -> str:
        """What the weights started from: a preset, `from RUN` or `import KIND`; – if not known."""
        return self.config.origin or self.config.preset or "–"

    @property
    def steps(self) -> int:
        return self.config.plan.steps if self.config.plan else self.state.step


def list_runs(folder: Path) -> tuple[list[RunSummary], list[str]]:
    """Return the runs in a folder, ordered by last change, and error messages of damaged ones.

    A run without a checkpoint is listed while it is trained.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: " + ("is a file, not a folder of runs" if folder.exists() else "no such folder"))
    summaries, damaged = [], []
    for path in folder.iterdir():
        if run_folder.list_checkpoints(path) or ((path / run_folder.CONFIG).is_file() and _is_running(path)):
            try:
                summaries.append(summarise_run(path))
            except InputError as error:
                damaged.append(str(error))
            except OSError as error:
                damaged.append(f"{error.filename or path}: {error.strerror}")
    return sorted(summaries, key=lambda summary: summary.modified_at), damaged


def summarise_run(run: Path) -> RunSummary:
    """Return the summary of a run; InputError if the folder is not a run or is damaged."""
    log, is_running = run / run_folder.METRICS, _is_running(run)
    if is_running and not run_folder.list_checkpoints(run):
        config, modified_at = run_folder.load_config(run), (run / run_folder.CONFIG).stat().st_mtime
        return RunSummary(run, config, TrainingState(), 0, 0, None, modified_at, running_step=_last_step(log))
    last = run_folder.find_checkpoint(run, which="last")
    config, state = run_folder.load_config(last), run_folder.load_state(last)
    modified_at = max(path.stat().st_mtime for path in (last, log) if path.exists())
    trainable = run_folder.count_parameters(last)
    base = read_base_path(last) if config.lora else None
    base_parameters = run_folder.count_parameters(run, run_folder.BASE_WEIGHTS) if config.lora else 0
    bits = best_bits_per_byte(run, state)
    accuracy = best_accuracy(run, config, state)
    running_step = _last_step(log) if is_running else None
    return RunSummary(
        run, config, state, trainable + base_parameters, trainable, base, modified_at, bits, accuracy, running_step
    )


def best_bits_per_byte(run: Path, state: TrainingState) -> float | None:
    """Return the held-out bits/byte of a run's best checkpoint; None if not known."""
    if state.best_step is None:
        return None
    return _metric(run / run_folder.METRICS, state.best_step, _BITS_PER_BYTE)


def best_accuracy(run: Path, config: RunConfig, state: TrainingState) -> float | None:
    """Return the held-out accuracy of the best checkpoint of a run that learns labels; None if not known."""
    if state.best_step is None or not (config.is_classifier or config.label_completions):
        return None
    return _metric(run / run_folder.METRICS, state.best_step, _ACCURACY)


def _is_running(run: Path) -> bool:
    return is_locked(run / run_folder.LOCK)


def _last_step(log: Path) -> int:
    """Return the step of the last entry of a log, or 0."""
    return read_last(log, entry_step) or 0


def _metric(log: Path, step: int, name: str) -> float | None:
    """Return a metric of the evaluation after a step."""
    value = read_last(log, lambda entry: entry[name] if entry_step(entry) == step else None)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def has_improved(config: RunConfig, state: TrainingState) -> bool | None:
    """Whether training has improved the model since it started or was extended.

    Returns:
        None if nothing was evaluated.
    """
    if state.best_step is None:
        return None
    extended_at = config.plan.extended_at if config.plan is not None else None
    return state.best_step > (extended_at or 0)


def find_unfinished(folder: Path) -> Path:
    """Return the run in a folder that was changed last and has steps left; InputError if there is none."""
    unfinished = [run.folder for run in list_runs(folder)[0] if not run.state.finished and run.parameters]
    if not unfinished:
        raise InputError(f"{folder}: no unfinished run in this folder")
    return unfinished[-1]


_BITS_PER_BYTE = "validation_bits_per_byte"
_ACCURACY = "validation_accuracy"
_MAX_PLOTTED_VALUE = 1e300


@dataclass(frozen=True)
class MetricCurve:
    """Values of a metric over the steps of a run."""

    steps: list[int] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)


def load_curves(run: Path) -> dict[str, MetricCurve]:
    """Return the curves of all numeric metrics in a run's logs, by name.

    Infinite values, and those so large that differences would overflow, are left out.
    """
    curves: dict[str, MetricCurve] = {}
    for name in (run_folder.METRICS, run_folder.TIMINGS):
        if not (run / name).is_file():
            raise InputError(f"{run / name}: no such file; is {run} a run?")
        for number, line in enumerate(read_lines(run / name), 1):
            try:
                values = json.loads(line)
                step = entry_step(values)
                del values["step"]
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise InputError(f"{run / name}, line {number}: not a log entry") from None
            for key, value in values.items():
                if isinstance(value, (int, float)) and abs(value) <= _MAX_PLOTTED_VALUE and math.isfinite(value):
                    curve = curves.setdefault(key, MetricCurve())
                    curve.steps.append(step)
                    curve.values.append(float(value))
    return curves


def read_expert_load(run: Path, *, step: int) -> dict[str, list[float]]:
    """Return the fraction of tokens per expert, by layer, of the last evaluation up to a step; {} without one."""

    def read(entry: dict[str, Any]) -> dict[str, list[float]] | None:
        if entry_step(entry) > step:
            return None
        return {layer: [float(fraction) for fraction in fractions] for layer, fractions in entry[EXPERT_USE].items()}

    return read_last(run / run_folder.METRICS, read) or {}
