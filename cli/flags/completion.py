"""What the shell offers on TAB: runs, checkpoints, names. Reads folders only, and imports nothing that takes time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lm.config.presets import PRESETS

Complete = Callable[[str], list[str]]

_RUNS = "runs"
_CURVES = (
    "loss", "validation_loss", "validation_bits_per_byte", "validation_bleu", "learning_rate", "gradient_norm",
    "tokens_per_second", "seconds", "evaluation_seconds", "tokens", "validation_tokens", "epoch",
)  # fmt: skip


def among(names: Iterable[str]) -> Complete:
    """Completes one of some names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


presets = among(PRESETS)
curves = among(_CURVES)


def corpora(incomplete: str) -> list[str]:
    """Completes the name of a corpus."""
    from lm.text.public.catalogue import CORPORA

    return among(corpus.name for corpus in CORPORA)(incomplete)


def runs(incomplete: str) -> list[str]:
    """Completes a run here, in runs/ or in the folder that was typed; within a run, a checkpoint.

    Where there is none the shell goes on with files and folders.
    """
    typed = incomplete[: incomplete.rfind("/") + 1]
    folder = Path(typed or ".").expanduser()
    if folder.name == "checkpoints":
        found = [typed + name for name in _checkpoints(folder)]
    elif _is_run(folder):
        found = [f"{typed}checkpoints/{name}" for name in _checkpoints(folder / "checkpoints")]
    else:
        found = [typed + name for name in _runs_in(folder)]
        if not typed:
            found = [*(f"{_RUNS}/{name}" for name in _runs_in(Path(_RUNS))), *found]
    return among(found)(incomplete)


def runs_or_presets(incomplete: str) -> list[str]:
    """Completes a run, a checkpoint or a preset."""
    return [*runs(incomplete), *presets(incomplete)]


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if _is_run(path))
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    return (path / "checkpoints").is_dir()


def _checkpoints(folder: Path) -> list[str]:
    """The checkpoints of a run, the latest first."""
    names = [path.name for path in folder.glob("step-*") if path.name[5:].isdigit()]
    return sorted(names, key=lambda name: int(name[5:]), reverse=True)
