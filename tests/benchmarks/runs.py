"""Runs of `lm train` as a user starts them, and what their logs say."""

import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reading:
    """An evaluation of a run.

    Attributes:
        step: after so many steps.
        epoch: passes over the training split until then.
        seconds: of training until then, evaluations aside.
        loss: nats/token.
        bits_per_byte: the same loss, in units that do not depend on the tokenizer; of a masked model not a number.
        bleu: of translations of the validation split.
    """

    step: int
    epoch: float
    seconds: float
    loss: float
    bits_per_byte: float
    bleu: float | None


def lm(*arguments: str) -> None:
    """Run a command; its notes go to the terminal."""
    subprocess.run([sys.executable, "-m", "cli.main", *arguments], check=True)


def trained(corpus: Path, *flags: str) -> tuple[float, list[Reading]]:
    """Wall time of `lm train` in seconds, from start to end of the command, and the evaluations of its run."""
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        lm("train", str(corpus), *flags, "-o", str(run))
        return time.perf_counter() - began, readings(run)


def readings(run: Path) -> list[Reading]:
    """The evaluations of a run, in order."""
    seconds: dict[float, float] = {}
    total = 0.0
    for timing in _lines(run / "timings.jsonl"):
        total += timing.get("seconds", 0.0)
        seconds[timing["step"]] = total
    found, epoch = [], 0.0
    for line in _lines(run / "metrics.jsonl"):
        epoch = line.get("epoch", epoch)
        if "validation_loss" in line:
            step, loss, bits = line["step"], line["validation_loss"], line.get("validation_bits_per_byte", math.nan)
            found.append(Reading(int(step), epoch, seconds[step], loss, bits, line.get("validation_bleu")))
    return found


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
