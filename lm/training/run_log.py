"""The logs of a run: metrics, timings and decisions; JSON Lines, each entry with its step. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lm import files, run_folder
from lm.config.run_config import RunConfig, setting_values
from lm.training.events import VALIDATION_LOSS, Evaluation, Sample, Step

_STEP_FIELDS = {"loss", "tokens_per_second"}
"""Entries of optimizer steps have one of these fields; other entries belong to the evaluation after a step."""

EXPERT_USE = "validation_expert_use"
"""Field of an evaluation: fraction of the tokens that each expert processed, by layer."""

_PLAN_REASONS = {
    "device": "hardware", "dtype": "speed measured", "threads": "speed measured", "optimizer_dtype": "speed measured",
    "processes": "launcher", "data": "corpus", "data_key": "corpus",
}  # fmt: skip
"""What decides each field of a plan; all others follow from the length of the run."""


class RunLog:
    """The logs in a run folder.

    `metrics.jsonl` and `timings.jsonl` log steps and evaluations. `decisions.jsonl` logs the reason of each setting
    before it is used; later changes, by a budget or when the run is resumed, are appended.
    """

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        """Open the logs of a run; without `writes` nothing is logged, because another rank does it."""
        self._writes = writes
        self.metrics, self.timings = folder / run_folder.METRICS, folder / run_folder.TIMINGS
        self.decisions = folder / run_folder.DECISIONS

    def log_step(self, event: Step, *, epoch: float) -> None:
        metrics = {"step": event.step, "loss": event.loss, "nll": event.nll, "learning_rate": event.learning_rate,
                   "gradient_norm": event.gradient_norm, "tokens": event.tokens, "epoch": epoch}  # fmt: skip
        self._append(self.metrics, metrics)
        speed = event.tokens / event.seconds
        self._append(self.timings, {"step": event.step, "seconds": event.seconds, "tokens_per_second": speed})

    def log_event(self, event: Evaluation | Sample) -> None:
        if isinstance(event, Sample):
            self._append(self.metrics, {"step": event.step, "prompt": event.prompt, "sample": event.text})
            return
        used = {EXPERT_USE: event.expert_use} if event.expert_use else {}
        self._append(self.metrics, {"step": event.step, **event.metrics, **used})
        self._append(self.timings, {"step": event.step, "evaluation_seconds": event.seconds})

    def start(self, config: RunConfig, reasons: Mapping[str, str]) -> None:
        """Log the reason of each value of a config and its plan; removes what a run that saved nothing has left.

        Args:
            reasons: by setting, such as "training.steps"; missing ones were given by the user.
        """
        for path in (self.metrics, self.timings, self.decisions):
            path.unlink(missing_ok=True)
        reasons, by = {"label_completions": "corpus", **reasons}, defaultdict[str, dict[str, Any]](dict)
        for name, value in _settings_by_name(config).items():
            section, _, field = name.partition(".")
            planned = _PLAN_REASONS.get(field, "length") if section == "plan" else "given"
            by[reasons.get(name, planned)][name] = value
        for reason, chosen in by.items():
            self._append(self.decisions, {"step": 0, "by": reason, "chosen": chosen})

    def log_changes(self, step: int, before: RunConfig, after: RunConfig, *, by: str) -> None:
        """Log the settings that were changed after a step, and the reason."""
        values, old = _settings_by_name(after), _settings_by_name(before)
        if chosen := {name: value for name, value in values.items() if value != old.get(name)}:
            self._append(self.decisions, {"step": step, "by": by, "chosen": chosen})

    def _append(self, path: Path, values: dict[str, Any]) -> None:
        if self._writes:
            with files.with_path_in_errors(path), path.open("ab", buffering=0) as file:
                file.write((files.to_json(values) + "\n").encode(errors="backslashreplace"))

    def reasons(self) -> dict[str, str]:
        """Return the latest reason of each setting."""
        return {name: entry["by"] for entry in entries(self.decisions) for name in entry["chosen"]}

    def last_validation_loss(self, step: int) -> float | None:
        """Return the validation loss of the last evaluation up to a step; None without one."""
        losses = [entry[VALIDATION_LOSS] for entry in entries(self.metrics, having=VALIDATION_LOSS, until=step)]
        return losses[-1] if losses else None

    def truncate(self, step: int, *, evaluation_due: bool = False) -> None:
        """Remove entries after `step`, so that the log of a resumed run looks uninterrupted.

        Each log is replaced atomically, and only if it changes.

        Args:
            step: last step to keep.
            evaluation_due: whether to remove the evaluation of that step too, because it will be repeated.
        """
        for path in (path for path in (self.metrics, self.timings) if path.exists()):
            kept = b"".join(
                line + b"\n"
                for line, entry in _lines(path)
                if entry["step"] < step
                or (entry["step"] == step and (not evaluation_due or _STEP_FIELDS & entry.keys()))
            )
            if kept != path.read_bytes():
                with files.atomic_write_bytes(path) as file:
                    file.write(kept)


def entries(log: Path, *, having: str = "step", until: float = float("inf")) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log up to a step that have a field; damaged and incomplete ones are skipped."""
    for _, entry in _lines(log, having.encode()) if log.is_file() else ():
        if having in entry and entry["step"] <= until:
            yield entry


def _lines(log: Path, having: bytes = b"") -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield lines with their entries; `str.splitlines` would split at U+2028 too, which JSON doesn't escape."""
    for line in log.read_bytes().split(b"\n")[:-1]:
        try:
            entry = json.loads(line) if having in line else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            yield line, entry


def _settings_by_name(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a config and its plan, by names such as "training.steps"."""
    planned = dataclasses.asdict(config.plan) if config.plan is not None else {}
    labels = {"label_completions": config.label_completions} if config.label_completions else {}
    values = setting_values(config)
    return {"preset": config.preset, **labels, **values, **{f"plan.{name}": value for name, value in planned.items()}}
