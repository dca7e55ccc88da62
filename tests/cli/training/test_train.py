"""A run to resume may be left out."""

from __future__ import annotations

import pytest

from cli.training.train import newest_by_default


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["train", "--resume"], ["train", "--resume", "runs"]),
        (["train", "--resume", "--steps", "9"], ["train", "--resume", "runs", "--steps", "9"]),
        (["train", "--resume", "mine"], ["train", "--resume", "mine"]),
        (["train", "text.txt"], ["train", "text.txt"]),
        (["generate", "--resume"], ["generate", "--resume"]),
        ([], []),
    ],
)
def test_resume_without_a_run_means_the_newest(given, meant):
    assert newest_by_default(given) == meant
