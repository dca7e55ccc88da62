"""Small corpora that ship with the toolkit: stories in English, and pairs of English and German sentences."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def path(name: str) -> Path:
    """Where a shipped file is, e.g. `path("stories/train.txt")`."""
    return Path(str(files(__name__).joinpath(name)))
