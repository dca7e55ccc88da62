"""Events of training, and the logs of a run: what they and its checkpoints say of it; without torch.

Metrics and timings are JSON Lines, each entry with its step.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm import files, run_folder
from lm.config.run_config import RunConfig
from lm.errors import InputError
from lm.run_folder import TrainingState


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        step: number of the step, from 1.
        loss: training loss in nats per token, with label smoothing and R-Drop if they are set, but without the
            load-balancing loss of experts.
        nll: mean surprisal of the targets in nats, as in an evaluation but with dropout.
        learning_rate: of this step.
        gradient_norm: norm of the gradient before clipping.
        tokens: number of targets; for masked models and classifiers number of tokens read.
        flops: FLOPs of the step, forward and backward.
        seconds: wall time of the step.
    """

    step: int
    loss: float
    nll: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class DecayStarted:
    """The learning rate starts to decay, because of a budget or a plateau.

    Attributes:
        steps: number of steps, now final.
        on_plateau: whether the validation loss no longer falls.
        restored_step: on a plateau, the step with the best loss, from whose weights training continues.
    """

    step: int
    steps: int
    on_plateau: bool = False
    restored_step: int | None = None


METRICS = ("loss", "bits_per_byte", "tokens", "bleu", "accuracy")
"""Fields of an Evaluation that are logged, as `validation_` and the name."""


@dataclass(frozen=True)
class Evaluation:
    """Scores on the validation split.

    Attributes:
        step: steps taken.
        loss: nats per token.
        bits_per_byte: bits per UTF-8 byte of text; None where not all of it is predicted.
        tokens: number of targets.
        seconds: wall time of the evaluation.
        is_best: whether no earlier evaluation was better.
        bleu: BLEU of greedy translations, for encoder-decoders.
        accuracy: fraction of targets predicted correctly, for masked models and classifiers.
    """

    step: int
    loss: float
    bits_per_byte: float | None
    tokens: int
    seconds: float
    is_best: bool
    bleu: float | None = None
    accuracy: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The scores that are known, by their names in `metrics.jsonl`."""
        values = {f"validation_{name}": getattr(self, name) for name in METRICS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Sample:
    """A model output for a fixed prompt: a continuation or, with `is_translation`, a translation."""

    step: int
    prompt: str
    text: str
    is_translation: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written; training has continued since its step."""

    step: int
    folder: Path


@dataclass(frozen=True)
class StoppedEarly:
    """Training ended before its last step, and the run is saved.

    Attributes:
        patience_ran_out: whether too many evaluations in a row were no better than the best; else the caller stopped
            it.
    """

    step: int
    patience_ran_out: bool = False


Event = Step | DecayStarted | Evaluation | Sample | Saved | StoppedEarly


_MAX_PLOTTED_VALUE = 1e300
_STEP_FIELDS = {"loss", "seconds"}
"""Entries of optimizer steps have one of these fields; other entries belong to the evaluation after a step."""


def log_step(run: Path, event: Step, *, epoch: float) -> None:
    """Append a step to `metrics.jsonl` (what was learned) and `timings.jsonl` (how fast)."""
    metrics = {name: value for name, value in vars(event).items() if name not in ("flops", "seconds")}
    _append(run / run_folder.METRICS, {**metrics, "epoch": epoch})
    timings = {"step": event.step, "seconds": event.seconds, "tokens_per_second": event.tokens / event.seconds}
    _append(run / run_folder.TIMINGS, timings)


def log_event(run: Path, event: Evaluation | Sample) -> None:
    """Append an evaluation or a sample."""
    if isinstance(event, Sample):
        _append(run / run_folder.METRICS, {"step": event.step, "prompt": event.prompt, "sample": event.text})
        return
    _append(run / run_folder.METRICS, {"step": event.step, **event.metrics})
    _append(run / run_folder.TIMINGS, {"step": event.step, "evaluation_seconds": event.seconds})


def read_evaluation_seconds(run: Path) -> float:
    """Return how long the last evaluation took; 0 without one."""
    name, entries = "evaluation_seconds", [entry for _, entry in _lines(run / run_folder.TIMINGS)]
    return next((entry[name] for entry in reversed(entries) if name in entry), 0.0)


def _append(path: Path, values: dict[str, Any]) -> None:
    with files.with_path_in_errors(path), path.open("ab", buffering=0) as file:
        file.write((files.to_json(values) + "\n").encode(errors="backslashreplace"))


def truncate_logs(run: Path, step: int, *, evaluation_due: bool = False) -> None:
    """Remove entries after a step, so that the logs of a resumed run look uninterrupted; atomic.

    Args:
        evaluation_due: whether to remove the evaluation of that step too, because it will be repeated.
    """
    last = step, not evaluation_due
    for path in (run / run_folder.METRICS, run / run_folder.TIMINGS):
        kept = [
            line + b"\n" for line, entry in _lines(path) if (entry["step"], not _STEP_FIELDS & entry.keys()) <= last
        ]
        with files.atomic_write_bytes(path) as file:
            file.writelines(kept)


def _lines(log: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield lines with their entries; damaged and incomplete ones are skipped.

    `str.splitlines` would split at U+2028 too, which JSON doesn't escape.
    """
    for line in log.read_bytes().split(b"\n")[:-1] if log.is_file() else ():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            yield line, entry


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run.

    Attributes:
        state: progress at the last checkpoint.
        parameters: of the model, including the base of adapters.
        modified_at: time of the last write, in seconds since 1970.
        steps: of the plan, or those taken by one that has none.
        is_running: whether a process is training the run now.
    """

    folder: Path
    config: RunConfig
    state: TrainingState
    parameters: int
    modified_at: float
    steps: int
    is_running: bool


def list_runs(folder: Path) -> tuple[list[RunSummary], list[str]]:
    """Return the runs in a folder that have a checkpoint, by last change, and error messages of damaged ones."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    summaries, damaged = [], []
    for path in folder.iterdir():
        if run_folder.list_checkpoints(path):
            try:
                summaries.append(_summarise(path))
            except (InputError, OSError) as error:
                damaged.append(str(error))
    return sorted(summaries, key=lambda summary: summary.modified_at), damaged


def _summarise(run: Path) -> RunSummary:
    last, log = run_folder.find_checkpoint(run, which="last"), run / run_folder.METRICS
    config, state, parameters = (
        run_folder.load_config(last), run_folder.load_state(last), run_folder.count_parameters(last)
    )  # fmt: skip
    if config.lora:
        parameters += run_folder.count_parameters(run, run_folder.BASE_WEIGHTS)
    modified_at = max(path.stat().st_mtime for path in (last, log) if path.exists())
    steps = state.step if config.plan is None else config.plan.steps
    return RunSummary(run, config, state, parameters, modified_at, steps, _is_running(run))


def _is_running(run: Path) -> bool:
    try:
        if (run / run_folder.LOCK).exists():
            run_folder.RunLock(run).close()
    except InputError:
        return True
    except OSError:  # no permission, so that this user does not train it
        pass
    return False


def load_curves(run: Path) -> dict[str, dict[int, float]]:
    """Return the curves of all numeric metrics in a run's logs, by name: the value at each step.

    Infinite values, and those so large that differences would overflow, are left out.
    """
    if not run.is_dir():
        raise InputError(f"{run}: no such run")
    curves = defaultdict[str, dict[int, float]](dict)
    for path in (run / run_folder.METRICS, run / run_folder.TIMINGS):
        for _, entry in _lines(path):
            for name, value in entry.items():
                if name != "step" and isinstance(value, int | float) and abs(value) <= _MAX_PLOTTED_VALUE:
                    curves[name][entry["step"]] = float(value)
    return curves
