"""Each system trained for the same time on the same pairs, and what its translations are worth.

A run has as many steps as its time allows, by the processor time of a step as a short trial shows it. So it may be
repeated step by step, and work that continues beside it takes nothing from it.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from tests.benchmarks.history.systems import COMMON, System
from tests.benchmarks.runs import lm

LENGTHS = ((1, 9), (10, 13), (14, 17), (18, 999))
"""Words of a source, from and to, of the sentences that are scored together."""

_TRIAL_STEPS = (10, 50)
"""Steps of two trials: what the second takes more is what its further steps take."""


_WITHOUT_SCORES = ("--evaluate-every", "0", "--best-by", "loss", "--warmup-steps", "1")


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        system: its key.
        seed: of the run.
        steps: that its time allowed.
        tokens_per_second: targets trained on in a second of processor time.
        seconds: of processor time that the command took, with its start and its evaluations.
        dtype: arithmetic of the matmuls.
        epochs: passes over the pairs.
        parameters: of the model.
        active: parameters that a token goes through.
        bleu: of greedy translations of the validation split.
        by_length: the same, of the sentences of each of `LENGTHS`.
    """

    system: str
    seed: int
    steps: int
    tokens_per_second: float
    seconds: float
    dtype: str
    epochs: float
    parameters: int
    active: int
    bleu: float
    by_length: list[float]


class Experiment:
    """The runs of one folder; those that are there already are not done again."""

    def __init__(self, data: Path, folder: Path, *, seconds: float, dtype: str) -> None:
        """Train on Multi30k's files in `data`, for so many seconds of processor time each, into `folder`."""
        self.data, self.folder, self.seconds, self.dtype = data, folder, seconds, dtype
        folder.mkdir(parents=True, exist_ok=True)

    def results(self) -> list[Result]:
        """What there is so far."""
        return [Result(**json.loads(file.read_text())) for file in sorted(self.folder.glob("*.result.json"))]

    def run(self, folder_of: System, seed: int) -> Path:
        """Where the run of a system and a seed is."""
        return self.folder / f"{folder_of.key}-{seed}"

    def do(self, system: System, seed: int) -> Result:
        """Train, translate and score, unless that is done."""
        run = self.run(system, seed)
        written = run.with_name(f"{run.name}.result.json")
        if not written.exists():
            cost = self._seconds_of_a_step(system)
            steps = round(self.seconds / cost)
            shutil.rmtree(run, ignore_errors=True)  # of a command that was stopped
            before = _processor_seconds()
            self._train(system, seed, run, steps)
            used = _processor_seconds() - before
            result = self._scored(system, seed, run, cost=cost, used=used)
            written.write_text(json.dumps(asdict(result), indent=2) + "\n")
        return Result(**json.loads(written.read_text()))

    def tokenizer(self) -> Path:
        """The tokenizer that all share, trained on both sides."""
        file = self.folder / "tokenizer.json"
        if not file.exists():
            lm("tokenizer", "train", *map(str, self._sides("train")), "--vocab-size", "4000", "-o", str(file))
        return file

    def _sides(self, part: str) -> list[Path]:
        return [self.data / f"{part}.{language}" for language in ("en", "de")]

    def _train(self, system: System, seed: int, run: Path, steps: int, *flags: str) -> None:
        pairs = zip(
            ("--source", "--target", "--validation-source", "--validation-target"),
            map(str, (*self._sides("train"), *self._sides("val"))),
            strict=True,
        )
        lm(
            "train", *(word for pair in pairs for word in pair), "--tokenizer", str(self.tokenizer()),
            "--steps", str(steps), "--seed", str(seed), "-o", str(run), *system.flags, *COMMON, "--dtype", self.dtype,
            *(flags or ("--evaluate-every", str(-(-steps // 4)))),
        )  # fmt: skip

    def _seconds_of_a_step(self, system: System) -> float:
        """Processor time of a step."""
        written = self.folder / f"{system.key}.seconds"
        if not written.exists():
            used = []
            for steps in _TRIAL_STEPS:
                before = _processor_seconds()
                with tempfile.TemporaryDirectory() as folder:
                    self._train(system, 1, Path(folder) / "run", steps, *_WITHOUT_SCORES)
                used.append(_processor_seconds() - before)
            written.write_text(str((used[1] - used[0]) / (_TRIAL_STEPS[1] - _TRIAL_STEPS[0])))
        return float(written.read_text())

    def _scored(self, system: System, seed: int, run: Path, *, cost: float, used: float) -> Result:
        """Greedy translations of the validation split against its references."""
        source, target = self._sides("val")
        written = run.with_name(f"{run.name}.{target.name}")
        lm("translate", str(run), str(source), "--beam", "1", "-o", str(written), "--threads", "1")
        sources, translations, references = (
            file.read_text(encoding="utf-8").splitlines() for file in (source, written, target)
        )
        about = info(run)
        steps, tokens = about["progress"]["step"], about["progress"]["tokens"]
        return Result(
            system=system.key,
            seed=seed,
            steps=steps,
            tokens_per_second=tokens / steps / cost,
            seconds=used,
            dtype=about["config"]["plan"]["dtype"],
            epochs=about["progress"]["samples"] / len(self._sides("train")[0].read_text(encoding="utf-8").splitlines()),
            parameters=about["parameters"]["total"],
            active=about["active_parameters"],
            bleu=bleu(translations, references),
            by_length=[
                bleu(*of_length(*words, sources=sources, translations=translations, references=references))
                for words in LENGTHS
            ],
        )


def info(run: Path) -> dict[str, Any]:
    """What `lm info` says of a run."""
    printed = subprocess.run(
        [sys.executable, "-m", "cli.main", "info", str(run), "--json"], check=True, capture_output=True
    ).stdout
    found: dict[str, Any] = json.loads(printed)
    return found


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Cased BLEU by 13a."""
    return BLEU().corpus_score(translations, [references]).score


def of_length(
    shortest: int, longest: int, *, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The translations and references of the sources that have so many words."""
    chosen = [place for place, source in enumerate(sources) if shortest <= len(source.split()) <= longest]
    return [translations[place] for place in chosen], [references[place] for place in chosen]


def _processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
