"""Shell completion of runs, checkpoints and names; reads folders only, and imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lm.config.presets import PRESETS
from lm.run_folder import CHECKPOINTS, RUNS, checkpoint_step, is_checkpoint_name, is_run
from lm.training.events import METRICS

Complete = Callable[[str], list[str]]

_METRICS = (
    "nll", "loss", *(f"validation_{name}" for name in METRICS), "learning_rate",
    "gradient_norm", "tokens_per_second", "seconds", "evaluation_seconds",
    "tokens", "epoch",
)  # fmt: skip


def complete_from(names: Iterable[str]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_presets = complete_from(PRESETS)
complete_metrics = complete_from(_METRICS)


def complete_settings(settings: Iterable[Any]) -> Complete:
    """Return a completer of KEY=VALUE: keys, and the values of the only key that is meant, if they are a list."""

    def complete(incomplete: str) -> list[str]:
        key, equals, _ = incomplete.partition("=")
        matches = [
            setting for setting in settings if setting.key == key or (not equals and setting.key.startswith(key))
        ]
        if len(matches) == 1:
            (setting,) = matches
            values = ("true", "false") if setting.plain_type is bool else setting.choices
            if values:
                return complete_from(f"{setting.key}={value}" for value in values)(incomplete)
        return [] if equals else [f"{setting.key}=" for setting in matches]

    return complete


def complete_corpora(incomplete: str) -> list[str]:
    """Complete the name of a corpus."""
    from lm.text.public import CORPORA

    return complete_from(corpus.name for corpus in CORPORA)(incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Complete a run in the current folder, in runs/ or in the typed folder, or a checkpoint of a run.

    Without matches the shell completes files and folders.
    """
    typed = incomplete[: incomplete.rfind("/") + 1]
    folder = Path(typed or ".").expanduser()
    if folder.name == CHECKPOINTS:
        paths = [typed + name for name in _checkpoints(folder)]
    elif is_run(folder):
        paths = [f"{typed}{CHECKPOINTS}/{name}" for name in _checkpoints(folder / CHECKPOINTS)]
    else:
        paths = [typed + name for name in _runs_in(folder)]
        if not typed:
            paths = [*(f"{RUNS}/{name}" for name in _runs_in(RUNS)), *paths]
    return complete_from(paths)(incomplete)


def complete_runs_or_presets(incomplete: str) -> list[str]:
    """Complete a run, a checkpoint or a preset."""
    return [*complete_runs(incomplete), *complete_presets(incomplete)]


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if is_run(path))
    except OSError:
        return []


def _checkpoints(folder: Path) -> list[str]:
    """Return the checkpoints in a folder, newest first, complete or not."""
    checkpoints = [path for path in folder.glob("*") if is_checkpoint_name(path.name)]
    return [path.name for path in sorted(checkpoints, key=checkpoint_step, reverse=True)]
