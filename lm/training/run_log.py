"""The logs of a run: metrics, timings and decisions."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lm import files, run_folder
from lm.config.run_config import RunConfig, setting_values
from lm.training.events import VALIDATION_LOSS, Evaluation, Sample, Step

T = TypeVar("T")

_STEP_FIELDS = {"loss", "tokens_per_second"}
"""Entries of optimizer steps have one of these fields; other entries belong to the evaluation after a step."""

EXPERT_USE = "validation_expert_use"
"""Field of an evaluation: fraction of the tokens that each expert processed, by layer."""


_PLAN_REASONS = {
    "device": "hardware", "dtype": "speed measured", "threads": "speed measured", "optimizer_dtype": "speed measured",
    "processes": "launcher", "micro_batch_tokens": "memory", "data": "corpus", "data_key": "corpus",
}  # fmt: skip
"""What decides each field of a plan; all others follow from the length of the run."""


class RunLog:
    """The logs in a run folder: JSON Lines, each entry with its step.

    `metrics.jsonl` and `timings.jsonl` log steps and evaluations. `decisions.jsonl` logs the reason of each setting
    before it is used; later changes, by a budget or when the run is resumed, are appended.
    """

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        """Open the logs of a run; without `writes` nothing is logged, because another rank does it."""
        self._writes = writes
        self._pending: dict[Path, str] = {}
        self._error: OSError | None = None
        self.metrics, self.timings = folder / run_folder.METRICS, folder / run_folder.TIMINGS
        self.decisions = folder / run_folder.DECISIONS

    def log_step(self, event: Step, *, epoch: float) -> None:
        nll = {} if event.nll is None else {"nll": event.nll}
        metrics = {"step": event.step, "loss": event.loss, **nll, "learning_rate": event.learning_rate,
                   "gradient_norm": event.gradient_norm, "tokens": event.tokens, "epoch": epoch}  # fmt: skip
        self._append(self.metrics, metrics)
        self._append(
            self.timings,
            {"step": event.step, "seconds": event.seconds, "tokens_per_second": event.tokens / event.seconds},
        )

    def log_event(self, event: Evaluation | Sample) -> None:
        if isinstance(event, Sample):
            self._append(self.metrics, {"step": event.step, "prompt": event.prompt, "sample": event.text})
            return
        metrics: dict[str, Any] = {"step": event.step, **event.metrics}
        if event.expert_use:
            metrics[EXPERT_USE] = event.expert_use
        self._append(self.metrics, metrics)
        self._append(self.timings, {"step": event.step, "evaluation_seconds": event.seconds})

    def log_decisions(self, step: int, config: RunConfig, reasons: Mapping[str, str]) -> None:
        """Log the reason of each value of a config and its plan.

        Args:
            reasons: by setting, such as "training.steps"; missing ones were given by the user.
        """
        reasons, by = {"label_completions": "corpus", **reasons}, defaultdict[str, dict[str, Any]](dict)
        for name, value in _settings_by_name(config).items():
            section, _, field = name.partition(".")
            planned = _PLAN_REASONS.get(field, "length") if section == "plan" else "given"
            by[reasons.get(name, planned)][name] = value
        for reason, chosen in by.items():
            self._append(self.decisions, {"step": step, "by": reason, "chosen": chosen})

    def log_changes(self, step: int, before: RunConfig, after: RunConfig, *, by: str) -> None:
        """Log the settings that were changed after a step, and the reason."""
        values, old = _settings_by_name(after), _settings_by_name(before)
        if chosen := {name: value for name, value in values.items() if value != old.get(name)}:
            self._append(self.decisions, {"step": step, "by": by, "chosen": chosen})

    def pop_warning(self) -> str | None:
        """Return a warning, once, if entries could not be written and are kept in memory."""
        error, self._error = self._error, None
        if error is None:
            return None
        return f"{error.filename}: {error.strerror}; its entries are kept in memory until they can be written"

    def flush(self) -> None:
        """Write entries that are still in memory; raises OSError if that fails."""
        for path in list(self._pending):
            self._write_pending(path)

    def _append(self, path: Path, values: dict[str, Any]) -> None:
        """Add an entry; if writing fails, keep it in memory and try again with the next one."""
        if not self._writes:
            return
        is_first = path not in self._pending
        self._pending[path] = self._pending.get(path, "") + files.to_json(values) + "\n"
        try:
            self._write_pending(path)
        except OSError as error:
            self._error = error if is_first else self._error

    def _write_pending(self, path: Path) -> None:
        """Append the pending entries to a log, all or none."""
        with files.with_path_in_errors(path):
            size = path.stat().st_size if path.exists() else 0
            unwritten = memoryview(self._pending[path].encode(errors="backslashreplace"))
            try:
                with path.open("ab", buffering=0) as file:
                    while unwritten:
                        unwritten = unwritten[file.write(unwritten) :]
            except OSError:  # closing may fail too
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(path, size)
                raise
        del self._pending[path]

    def last_reason(self, name: str) -> str | None:
        """Return the latest reason of a setting, such as "training.steps"; None if it was not logged."""
        return read_last(self.decisions, lambda entry: str(entry["by"]) if name in entry["chosen"] else None)

    def last_validation_loss(self, step: int) -> float | None:
        """Return the validation loss of the last evaluation up to a step; None without one."""
        return read_last(
            self.metrics, lambda entry: float(entry[VALIDATION_LOSS]) if entry_step(entry) <= step else None
        )

    def truncate(self, step: int, *, evaluation_due: bool = False) -> None:
        """Remove entries after `step`, so that the log of a resumed run looks uninterrupted.

        Each log is replaced atomically, and only if it changes.

        Args:
            step: last step to keep.
            evaluation_due: whether to remove the evaluation of that step too, because it will be repeated.
        """
        for path in self._paths():
            kept = _lines_until(path, step, evaluation_due=evaluation_due)
            if kept != path.read_bytes():
                _replace_file(path, kept)

    def back_up(self) -> None:
        """Back up the logs until `discard_backup` or `restore_backup`."""
        for path in self._paths():
            _replace_file(run_folder.log_backup_path(path), _lines_until(path, math.inf))

    def clear(self) -> None:
        """Remove the entries of an earlier run in this folder that saved no checkpoint."""
        self.discard_backup()
        self.truncate(-1)
        self.decisions.unlink(missing_ok=True)

    def discard_backup(self) -> None:
        for path in (self.metrics, self.timings):
            run_folder.log_backup_path(path).unlink(missing_ok=True)

    def restore_backup(self) -> None:
        """Restore the backup of the logs, if there is one: the branch after it has saved no checkpoint."""
        for path in (self.metrics, self.timings):
            with contextlib.suppress(FileNotFoundError):
                run_folder.log_backup_path(path).replace(path)

    def _paths(self) -> list[Path]:
        return [path for path in (self.metrics, self.timings) if path.exists()]


def _settings_by_name(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a config and its plan, by names such as "training.steps"."""
    values = setting_values(config)
    planned = dataclasses.asdict(config.plan) if config.plan is not None else {}
    labels = {"label_completions": config.label_completions} if config.label_completions else {}
    return {"preset": config.preset, **labels, **values, **{f"plan.{name}": value for name, value in planned.items()}}


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a log, without a last line that is incomplete."""
    return path.read_bytes().split(b"\n")[:-1]  # str.splitlines would split at U+2028 too, which JSON doesn't escape


def read_last(log: Path, read: Callable[[dict[str, Any]], T | None]) -> T | None:
    """Return the last result of `read` for the entries of a log that is not None; damaged entries are skipped."""
    for line in reversed(read_lines(log) if log.is_file() else []):
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if (value := read(json.loads(line))) is not None:
                return value
    return None


def entry_step(entry: Any) -> int:
    """Return the step of an entry.

    Raises:
        ValueError, TypeError, KeyError: it is not an entry of a log, or its step is out of range.
    """
    step = entry["step"]
    if not isinstance(step, int) or not 0 <= step < 1 << 63:
        raise ValueError("a step is an integer from 0 to 2**63 - 1")
    return int(step)


def _lines_until(path: Path, step: float, *, evaluation_due: bool = False) -> bytes:
    return b"".join(line + b"\n" for line in read_lines(path) if _is_kept(line, step, evaluation_due))


def _replace_file(path: Path, content: bytes) -> None:
    with files.atomic_write_bytes(path) as file:
        file.write(content)


def _is_kept(line: bytes, step: float, evaluation_due: bool) -> bool:
    """Whether a line is a complete entry of a step up to `step`."""
    try:
        entry = json.loads(line)
        logged_step = entry_step(entry)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    is_later_than_the_step = evaluation_due and not _STEP_FIELDS & entry.keys()
    return logged_step < step or (logged_step == step and not is_later_than_the_step)
