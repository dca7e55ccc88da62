"""The logs of a run: what was learned, which is the same whenever the run is repeated, how fast, and what chose it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm import files, run_folder
from lm.config.options import list_options
from lm.config.run import SECTIONS, RunConfig
from lm.training.events import VALIDATION_LOSS, Evaluation, Sample, Step

_OF_STEPS = {"loss", "tokens_per_second"}
"""Entries of optimizer steps have one of these; all others are of the evaluation after one."""

EXPERT_USE = "validation_expert_use"
"""Entry of an evaluation: the share of the tokens that each expert took, by layer."""


_OF_PLAN = {
    "device": "hardware", "dtype": "speed measured", "threads": "speed measured", "optimizer_dtype": "speed measured",
    "processes": "launcher", "micro_batch_tokens": "memory", "data": "corpus", "data_key": "corpus",
}  # fmt: skip
"""What chooses each value of a plan; all others follow from the length of the run."""


class Journal:
    """The logs of a run folder, one JSON object a line, each with its step.

    `metrics.jsonl` and `timings.jsonl` tell of steps and evaluations. `decisions.jsonl` tells what chose each setting,
    before it is used; what is chosen otherwise later, by the clock of a budget or as a run is resumed, is appended.
    """

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        """Of a run; with `writes` false, what is to be noted is not: another process does it."""
        self._writes = writes
        self._waiting: dict[Path, str] = {}
        self._error: OSError | None = None
        self.metrics, self.timings = folder / run_folder.METRICS, folder / run_folder.TIMINGS
        self.decisions = folder / run_folder.DECISIONS

    def step(self, event: Step, *, epoch: float) -> None:
        """Note an optimizer step."""
        nll = {} if event.nll is None else {"nll": event.nll}
        metrics = {"step": event.step, "loss": event.loss, **nll, "learning_rate": event.learning_rate,
                   "gradient_norm": event.gradient_norm, "tokens": event.tokens, "epoch": epoch}  # fmt: skip
        self._append(self.metrics, metrics)
        self._append(
            self.timings,
            {"step": event.step, "seconds": event.seconds, "tokens_per_second": event.tokens / event.seconds},
        )

    def note(self, event: Evaluation | Sample) -> None:
        """Note an evaluation or a sample."""
        if isinstance(event, Sample):
            self._append(self.metrics, {"step": event.step, "prompt": event.prompt, "sample": event.text})
            return
        metrics: dict[str, Any] = {"step": event.step, **event.metrics}
        if event.expert_use:
            metrics[EXPERT_USE] = event.expert_use
        self._append(self.metrics, metrics)
        self._append(self.timings, {"step": event.step, "evaluation_seconds": event.seconds})

    def decide(self, step: int, config: RunConfig, reasons: Mapping[str, str]) -> None:
        """Note what chose each value of a config and its plan.

        Args:
            step: after which it is chosen.
            config: with a plan.
            reasons: what chose a setting, by its name, as in "training.steps"; "given" for those that are missing.
        """
        reasons, by = {"label_completions": "corpus", **reasons}, defaultdict[str, dict[str, Any]](dict)
        for name, value in _values(config).items():
            section, _, field = name.partition(".")
            planned = _OF_PLAN.get(field, "length") if section == "plan" else "given"
            by[reasons.get(name, planned)][name] = value
        for reason, chosen in by.items():
            self._append(self.decisions, {"step": step, "by": reason, "chosen": chosen})

    def revise(self, step: int, before: RunConfig, after: RunConfig, *, by: str) -> None:
        """Note what of a config or its plan was changed after a step, and by what."""
        values, old = _values(after), _values(before)
        if chosen := {name: value for name, value in values.items() if value != old.get(name)}:
            self._append(self.decisions, {"step": step, "by": by, "chosen": chosen})

    def warning(self) -> str | None:
        """Say once, after the first entry that could not be written, that entries wait for room; None otherwise."""
        error, self._error = self._error, None
        if error is None:
            return None
        return f"{error.filename}: {error.strerror}; its entries are kept in memory, and written once they can be"

    def finish(self) -> None:
        """Write the entries that still wait; OSError if they cannot be."""
        for path in list(self._waiting):
            self._write_waiting(path)

    def _append(self, path: Path, values: dict[str, Any]) -> None:
        """Add an entry. Where that fails, it waits in memory for the next: training is worth more than its log."""
        if not self._writes:
            return
        is_first = path not in self._waiting
        self._waiting[path] = self._waiting.get(path, "") + files.json_text(values) + "\n"
        try:
            self._write_waiting(path)
        except OSError as error:
            self._error = error if is_first else self._error

    def _write_waiting(self, path: Path) -> None:
        """Append the waiting entries to a log, all of them or none."""
        with files.naming(path), path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            left = memoryview(self._waiting[path].encode(errors="backslashreplace"))
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(size)
                raise
        del self._waiting[path]

    def chosen_by(self, name: str) -> str | None:
        """What chose a setting last, by its name, as in "training.steps"; None where that was not noted."""
        by = None
        for line in lines(self.decisions) if self.decisions.is_file() else []:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                entry = json.loads(line)
                if name in entry["chosen"]:
                    by = str(entry["by"])
        return by

    def validation_loss(self, step: int) -> float | None:
        """The validation loss of the last evaluation up to a step; None without one."""
        name, found = VALIDATION_LOSS, None
        for line in lines(self.metrics) if self.metrics.is_file() else []:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                entry = json.loads(line)
                if name in entry and step_of(entry) <= step:
                    found = float(entry[name])
        return found

    def forget_after(self, step: int, *, evaluation_due: bool = False) -> None:
        """Drop what is later than `step`, so that the log of a resumed run reads as if it had never stopped.

        Each log is replaced at one stroke, and left alone where there is nothing to drop.

        Args:
            step: the last one to keep.
            evaluation_due: whether its evaluation is still to come, so that none of it is kept.
        """
        for path in self._paths():
            kept = _kept(path, step, evaluation_due=evaluation_due)
            if kept != path.read_bytes():
                _replace(path, kept)

    def set_aside(self) -> None:
        """Keep the logs as they are now, until `settle`."""
        for path in self._paths():
            _replace(run_folder.set_aside(path), _kept(path, math.inf))

    def clear(self) -> None:
        """Drop the entries of a run that was started in this folder before and has saved nothing."""
        self.settle()
        self.forget_after(-1)
        self.decisions.unlink(missing_ok=True)

    def settle(self) -> None:
        """Remove the logs that were set aside."""
        for path in (self.metrics, self.timings):
            run_folder.set_aside(path).unlink(missing_ok=True)

    def restore(self) -> None:
        """Go back to the logs that were set aside, if any still are: their branch has saved nothing."""
        for path in (self.metrics, self.timings):
            with contextlib.suppress(FileNotFoundError):
                run_folder.set_aside(path).replace(path)

    def _paths(self) -> list[Path]:
        return [path for path in (self.metrics, self.timings) if path.exists()]


def _values(config: RunConfig) -> dict[str, Any]:
    """The settings of a config and its plan by name, as in "training.steps"."""
    values = {
        f"{section}.{described.name}": getattr(getattr(config, section), described.name)
        for section, kind in SECTIONS.items()
        for described in list_options(kind)
    }
    planned = dataclasses.asdict(config.plan) if config.plan is not None else {}
    labels = {"label_completions": config.label_completions} if config.label_completions else {}
    return {"preset": config.preset, **labels, **values, **{f"plan.{name}": value for name, value in planned.items()}}


def lines(path: Path) -> list[bytes]:
    """The lines of a log. Without a line feed at its end, the last is torn or still being written, and left out."""
    return path.read_bytes().split(b"\n")[:-1]  # text would be split at U+2028 too, which JSON leaves as it is


def step_of(entry: Any) -> int:  # noqa: ANN401 (whatever a line holds)
    """The step of an entry.

    Raises:
        ValueError, TypeError, KeyError: it is no entry of a log, or its step is not a count.
    """
    step = entry["step"]
    if not isinstance(step, int) or not 0 <= step < 1 << 63:
        raise ValueError("a step is an integer from 0 to 2**63 - 1")
    return int(step)


def _kept(path: Path, step: float, *, evaluation_due: bool = False) -> bytes:
    """The lines of a log up to a step."""
    return b"".join(line + b"\n" for line in lines(path) if _is_kept(line, step, evaluation_due))


def _replace(path: Path, content: bytes) -> None:
    with files.replaced_bytes(path) as file:
        file.write(content)


def _is_kept(line: bytes, step: float, evaluation_due: bool) -> bool:
    """Whether a line is an entry of a step up to `step`; a line torn by a crash is none."""
    try:
        entry = json.loads(line)
        of_step = step_of(entry)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    is_later_than_the_step = evaluation_due and not _OF_STEPS & entry.keys()
    return of_step < step or (of_step == step and not is_later_than_the_step)
