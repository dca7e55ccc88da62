"""A text, a run trained on it, and what resuming must not change."""

import random
from pathlib import Path

import pytest

from cli.main import run
from lm.files import sha256
from lm.run_folder import find_checkpoint

SMALL = ["--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--context", "16", "--batch-size", "4",
         "--tokenizer", "byte"]  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """A folder with a text and a run trained on it."""
    folder = tmp_path_factory.mktemp("place")
    chance = random.Random(5)
    words = ["one", "two", "three", "four", "five", "six"]
    text = "\n".join(" ".join(chance.choices(words, k=9)) for _ in range(400))
    (folder / "text.txt").write_text(text)
    command = ["train", str(folder / "text.txt"), "-o", str(folder / "run"), "--steps", "30", "--evaluate-every", "0"]
    assert run([*command, *SMALL]) == 0
    return folder


def hashes(folder: Path) -> dict[str, str]:
    """The hashes of a run's log, and of the weights and optimizer state of its last checkpoint."""
    last = find_checkpoint(folder, which="last")
    paths = [folder / "metrics.jsonl", last / "model.safetensors", last / "optimizer.safetensors"]
    return {path.name: sha256(path) for path in paths}


def assert_resumes_exactly(whole: Path, copy: Path, *, step: int) -> None:
    """Assert that an earlier checkpoint of a run, resumed in a new run, ends as the run did."""
    assert run(["train", "--resume", str(whole / "checkpoints" / f"step-{step}"), "-o", str(copy)]) == 0
    assert hashes(copy) == hashes(whole)
