"""A small corpus of bytes, tokenized once, and runs on it."""

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.config.model import ModelConfig
from lm.config.run_config import DataConfig, RunConfig, TokenizerConfig, TrainingConfig
from lm.run_folder import find_checkpoint
from lm.text.find import find_text_files
from lm.tokenizer import Tokenizer
from lm.tokenizer import training as tokenizer_training
from lm.training import rules as clock
from lm.training.evaluation import validation_sums
from lm.training.run import Run
from lm.training.training_corpus import TrainingCorpus
from tests.lm.corpus.preparing import prepare
from tests.lm.training.runs import start_run


def stop_after(steps: int) -> Callable[[], bool]:
    """For `train`: true once so many steps have been taken."""
    taken = iter(range(1, 1_000_000))
    return lambda: next(taken) >= steps


class FakeTime:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch) -> FakeTime:
    """The clock of the budget of a run, which moves when it is told to."""
    fake = FakeTime()
    monkeypatch.setattr(clock.time, "monotonic", fake.monotonic)
    return fake


def copy_run(run: Run, folder: Path) -> Run:
    """Return a run that has ended, in a folder of its own."""
    copied = copy.copy(run)
    copied.folder = Path(shutil.copytree(run.folder, folder))
    return copied


def loss_of(run: Run) -> tuple[float, int]:
    """Summed nats and targets of the whole validation split."""
    run.model.eval()
    return validation_sums(run)[:2]


def sums(run: Run) -> dict[str, str]:
    """The hashes of the files of a run's last checkpoint."""
    found = find_checkpoint(run.folder, which="last")
    return json.loads((found / "manifest.json").read_text())["sha256"]


def metrics_lines(run: Run) -> list[str]:
    """Return the lines of `metrics.jsonl`."""
    return (run.folder / "metrics.jsonl").read_text().split("\n")


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return tokenizer_training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0)


@pytest.fixture(scope="session")
def shards(tmp_path_factory, byte_tokenizer) -> Path:
    """Shards of a text in which the next word depends on the last."""
    chance, words = random.Random(1), ["ba", "du", "ki", "mo", "ne"]
    text, at = [], 0
    for _ in range(3000):
        at = (at * 2 + (chance.random() < 0.3)) % len(words)
        text.append(words[at])
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text(" ".join(text))
    sources = find_text_files([str(folder / "text.txt")])
    return prepare(sources, byte_tokenizer, DataConfig(), folder / "tokens").folder


@pytest.fixture
def make_run(tmp_path, shards, byte_tokenizer):
    """Start a small run; fields of any config may be given."""

    def make(name: str = "run", *, model: dict | None = None, **training: object) -> Run:
        return new_run(tmp_path / name, shards, byte_tokenizer, model=model, **training)

    return make


def new_run(folder: Path, shards: Path, tokenizer: Tokenizer, *, model: dict | None = None, **training: object) -> Run:
    """Start a small run on some shards."""
    shape = {"context_length": 16, "d_model": 32, "n_layers": 1, "n_heads": 2, "dropout": 0.1, **(model or {})}
    settings = {"batch_size": 6, "steps": 12, "warmup_steps": 3, "evaluate_every": 5, **training}
    config = RunConfig(ModelConfig(**shape), training=TrainingConfig(**settings))
    return start_run(folder, config, TrainingCorpus(shards, tokenizer))
