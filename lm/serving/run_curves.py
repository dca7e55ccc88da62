"""Training curves of the runs in a folder, also of those that are being trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm import run_folder
from lm.errors import LMError
from lm.serving.api_errors import ApiError
from lm.training import run_summaries


def list_runs(folder: str | None) -> dict[str, Any]:
    """Return the name of a folder, and its runs, those changed last at the end; the folder need not be there yet."""
    if folder is None:
        return {"folder": None, "runs": []}
    summaries, _ = run_summaries.list_runs(Path(folder)) if Path(folder).is_dir() else ([], [])
    return {
        "folder": Path(folder).resolve().name,
        "runs": [
            {
                "name": summary.folder.name,
                "step": summary.running_step or summary.state.step,
                "steps": summary.steps,
                "is_running": summary.running_step is not None,
                "bits_per_byte": summary.bits_per_byte,
                "parameters": summary.parameters,
                "changed": summary.modified_at,
            }
            for summary in summaries
        ],
    }


def read_metrics(folder: str | None, name: str, first: int) -> dict[str, Any]:
    """Return the metrics of a run from a step on, as steps and values by name; ApiError 404 if there is no such run."""
    missing = ApiError(404, f"there is no run {name[:80]!r}", code="not_found")
    if folder is None or not name or name in (".", "..") or set(name) & set("/\\\0") or len(name.encode()) > 255:
        raise missing
    run = Path(folder) / name
    if not run.is_dir():
        raise missing
    try:
        curves = run_summaries.load_curves(run)
    except (LMError, OSError):
        if not run_folder.is_run(run):
            raise missing from None
        curves = {}  # of an imported run, or of one that has just begun
    last = max((step for curve in curves.values() for step in curve.steps), default=0)
    return {
        "name": name,
        "last_step": last,
        "metrics": {
            metric: {
                "steps": [step for step in curve.steps if step >= first],
                "values": [value for step, value in zip(curve.steps, curve.values, strict=True) if step >= first],
            }
            for metric, curve in curves.items()
        },
    }
