"""The run's two logs: what was learned, the same for every repetition of a run, and how fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lm.training.events import Evaluation, Sample, Step


class Journal:
    """`metrics.jsonl` and `timings.jsonl` of a run folder, one JSON object a line, each with its step."""

    def __init__(self, folder: Path) -> None:
        self.metrics, self.timings = folder / "metrics.jsonl", folder / "timings.jsonl"

    def step(self, event: Step, *, epoch: float) -> None:
        """Note an optimizer step."""
        metrics = {"step": event.step, "loss": event.loss, "learning_rate": event.learning_rate,
                   "gradient_norm": event.gradient_norm, "tokens": event.tokens, "epoch": epoch}  # fmt: skip
        _append(self.metrics, metrics)
        _append(
            self.timings,
            {"step": event.step, "seconds": event.seconds, "tokens_per_second": event.tokens / event.seconds},
        )

    def note(self, event: Evaluation | Sample) -> None:
        """Note an evaluation or a sample."""
        if isinstance(event, Sample):
            _append(self.metrics, {"step": event.step, "prompt": event.prompt, "sample": event.text})
            return
        metrics = {"step": event.step, "validation_loss": event.loss, "validation_bits_per_byte": event.bits_per_byte,
                   "validation_tokens": event.tokens}  # fmt: skip
        if event.bleu is not None:
            metrics["validation_bleu"] = event.bleu
        _append(self.metrics, metrics)
        _append(self.timings, {"step": event.step, "evaluation_seconds": event.seconds})

    def forget_after(self, step: int) -> None:
        """Drop what is later than `step`, so that the log of a resumed run reads as if it had never stopped."""
        for path in (self.metrics, self.timings):
            if path.exists():
                kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
                path.write_text("".join(line + "\n" for line in kept))


def _append(path: Path, values: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values, ensure_ascii=False) + "\n")


def _step_of(line: str) -> float:
    """The step a line tells of; a line torn by a crash belongs to no step."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")
