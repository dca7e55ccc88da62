"""Shell completion of runs, checkpoints, presets and settings; reads folders only, and imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lm.config.presets import PRESETS
from lm.run_folder import CHECKPOINTS, RUNS, is_checkpoint_name, is_run

Complete = Callable[[str], list[str]]


def complete_from(names: Iterable[str]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_presets = complete_from(PRESETS)


def complete_settings(settings: Iterable[Any]) -> Complete:
    """Return a completer of KEY=VALUE: keys, and the values of a key that has a list of them."""

    def complete(incomplete: str) -> list[str]:
        offered = []
        for setting in settings:
            values = ("true", "false") if setting.plain_type is bool else setting.choices
            is_named = incomplete.startswith(f"{setting.key}=")
            offered += [f"{setting.key}={value}" for value in (values if is_named else ("",))]
        return complete_from(offered)(incomplete)

    return complete


def complete_runs(incomplete: str) -> list[str]:
    """Complete a run in the current folder, in runs/ or in the typed folder, or a checkpoint of a run.

    Without matches the shell completes files and folders.
    """
    typed = Path(incomplete[: incomplete.rfind("/") + 1])
    folders = [typed / CHECKPOINTS] if is_run(typed) else [typed] if "/" in incomplete else [RUNS, typed]
    paths = [path for folder in folders for path in sorted(folder.glob("*"))]
    return complete_from(str(path) for path in paths if is_run(path) or is_checkpoint_name(path.name))(incomplete)


def complete_runs_or_presets(incomplete: str) -> list[str]:
    """Complete a run, a checkpoint or a preset."""
    return [*complete_runs(incomplete), *complete_presets(incomplete)]
