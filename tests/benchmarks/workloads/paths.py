"""Where models are."""

from pathlib import Path


def model_path(folder: Path, shape: str, form: str = "run") -> Path:
    """Return where a model is, as a run or exported."""
    return folder / f"{shape}-{form}"
