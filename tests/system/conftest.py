"""A text, and a run trained on it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cli.main import run

SMALL = ["--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--context", "16", "--batch-size", "4",
         "--kind", "byte"]  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """A folder with a text and a run trained on it."""
    folder = tmp_path_factory.mktemp("place")
    chance = random.Random(5)
    words = ["one", "two", "three", "four", "five", "six"]
    text = "\n".join(" ".join(chance.choices(words, k=9)) for _ in range(400))
    (folder / "text.txt").write_text(text)
    assert run(["train", str(folder / "text.txt"), "-o", str(folder / "run"), "--steps", "30", *SMALL]) == 0
    return folder
