"""Small corpora that ship with the toolkit: stories in English, and pairs of English and German sentences."""

from pathlib import Path


def path(name: str) -> Path:
    """Return the path of a shipped file, e.g. `path("stories/train.txt")`."""
    return Path(__file__).parent / name
