"""Runs of `lm train` as a user starts them, and what their journals say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reading:
    """An evaluation of a run.

    Attributes:
        step: after so many steps.
        seconds: of training until then, evaluations aside.
        loss: nats a token.
        bits_per_byte: the same loss, in units that do not depend on the tokenizer.
    """

    step: int
    seconds: float
    loss: float
    bits_per_byte: float


def lm(*arguments: str) -> None:
    """Run a command; its notes go to the terminal."""
    subprocess.run([sys.executable, "-m", "cli.main", *arguments], check=True)


def readings(run: Path) -> list[Reading]:
    """The evaluations of a run, in order."""
    seconds: dict[int, float] = {}
    total = 0.0
    for timing in _lines(run / "timings.jsonl"):
        total += timing.get("seconds", 0.0)
        seconds[int(timing["step"])] = total
    return [
        Reading(
            int(line["step"]), seconds[int(line["step"])], line["validation_loss"], line["validation_bits_per_byte"]
        )
        for line in _lines(run / "metrics.jsonl")
        if "validation_loss" in line
    ]


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
