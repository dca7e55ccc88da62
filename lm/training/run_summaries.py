"""Summaries and curves of runs, read from their folders without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from lm import run_folder
from lm.adapter_base import read_base_path
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.locks import is_locked
from lm.run_folder import TrainingState
from lm.training.run_log import EXPERT_USE, entries

_MAX_PLOTTED_VALUE = 1e300


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
        is_starting = (path / run_folder.CONFIG).is_file() and is_locked(path / run_folder.LOCK)
        if run_folder.list_checkpoints(path) or is_starting:
            try:
                summaries.append(summarise_run(path))
            except InputError as error:
                damaged.append(str(error))
            except OSError as error:
                damaged.append(f"{error.filename or path}: {error.strerror}")
    return sorted(summaries, key=lambda summary: summary.modified_at), damaged


def summarise_run(run: Path) -> RunSummary:
    """Return the summary of a run; InputError if the folder is not a run or is damaged."""
    log, running_step = run / run_folder.METRICS, None
    if is_locked(run / run_folder.LOCK):
        running_step = max((entry["step"] for entry in entries(log)), default=0)
        if not run_folder.list_checkpoints(run):
            config, modified_at = run_folder.load_config(run), (run / run_folder.CONFIG).stat().st_mtime
            return RunSummary(run, config, TrainingState(), 0, 0, None, modified_at, running_step=running_step)
    last = run_folder.find_checkpoint(run, which="last")
    config, state, trainable = (
        run_folder.load_config(last), run_folder.load_state(last), run_folder.count_parameters(last)
    )  # fmt: skip
    return RunSummary(
        run,
        config,
        state,
        parameters=trainable + (run_folder.count_parameters(run, run_folder.BASE_WEIGHTS) if config.lora else 0),
        trainable_parameters=trainable,
        base=read_base_path(last) if config.lora else None,
        modified_at=max(path.stat().st_mtime for path in (last, log) if path.exists()),
        bits_per_byte=best_score(run, state, "validation_bits_per_byte"),
        accuracy=best_accuracy(run, config, state),
        running_step=running_step,
    )


def best_score(run: Path, state: TrainingState, name: str) -> float | None:
    """Return a metric of a run's best checkpoint; None if not known."""
    log = entries(run / run_folder.METRICS, having=name)
    values = [entry[name] for entry in log if entry["step"] == state.best_step]
    return float(values[-1]) if values and isinstance(values[-1], int | float) and math.isfinite(values[-1]) else None


def best_accuracy(run: Path, config: RunConfig, state: TrainingState) -> float | None:
    """Return the held-out accuracy of the best checkpoint of a run that learns labels; None if not known."""
    return best_score(run, state, "validation_accuracy") if config.is_classifier else None


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


@dataclass(frozen=True)
class MetricCurve:
    """Values of a metric over the steps of a run."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def load_curves(run: Path) -> dict[str, MetricCurve]:
    """Return the curves of all numeric metrics in a run's logs, by name.

    Infinite values, and those so large that differences would overflow, are left out.
    """
    curves: dict[str, MetricCurve] = {}
    for path in (run / run_folder.METRICS, run / run_folder.TIMINGS):
        if not path.is_file():
            raise InputError(f"{path}: no such file; is {run} a run?")
        for entry in entries(path):
            for key, value in entry.items():
                if key != "step" and isinstance(value, int | float) and abs(value) <= _MAX_PLOTTED_VALUE:
                    curve = curves.setdefault(key, MetricCurve())
                    curve.steps.append(entry["step"])
                    curve.values.append(float(value))
    return curves


def read_expert_load(run: Path, *, step: int) -> dict[str, list[float]]:
    """Return the fraction of tokens per expert, by layer, of the last evaluation up to a step; {} without one."""
    loads = [entry[EXPERT_USE] for entry in entries(run / run_folder.METRICS, having=EXPERT_USE, until=step)]
    return loads[-1] if loads else {}
