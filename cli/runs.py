"""`lm runs` and `lm plot`: list runs and draw their curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from cli import completion
from cli.console.colours import is_colour_enabled
from cli.console.plots import load_pyplot, plot_curves, save_figure
from cli.console.tables import print_table
from cli.console.text import (
    format_count,
    format_json_line,
    format_label,
    format_trainable,
    format_value,
    print_note,
    quote,
)
from lm.config.settings import did_you_mean
from lm.errors import LMError, UsageError
from lm.run_folder import RUNS, is_run
from lm.training import run_summaries
from lm.training.run_summaries import MetricCurve, RunSummary

_NLL = "nll"

_What = Annotated[
    str,
    typer.Option(
        "--what",
        metavar="NAME",
        help="Metric: nll, loss, validation_loss, learning_rate, …",
        autocompletion=completion.complete_metrics,
    ),
]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """List runs: preset, size, best score, progress.

    Those changed last stand at the end; a run that a process is training now says so. Scores are those of the split
    that the run held out: bits/byte, but the accuracy of classifiers and the BLEU of runs that translate.

    Examples:
      lm runs
      lm runs experiments/ --json
    """
    summaries, damaged = run_summaries.list_runs(folder)
    for problem in damaged:
        print_note(f"left out: {problem}")
    if as_json:
        print(format_json_line([_summary_to_dict(summary) for summary in summaries]))
        return
    if not summaries:
        problem = f"is a run, not a folder of runs; see lm info {quote(folder)}" if is_run(folder) else "no runs"
        print_note(f"{folder}: {problem}")
        return
    print_table(("run", "preset", "size", "bits/byte", "steps"), map(_table_row, summaries))
    for summary in summaries:
        if summary.base:
            parameters = format_trainable(summary.trainable_parameters, summary.parameters)
            rank = summary.config.lora.rank
            print_note(f"{summary.folder}: adapters of rank {rank} to {summary.base}: {parameters}")


def _table_row(summary: RunSummary) -> tuple[str, ...]:
    size = format_count(summary.parameters) if summary.parameters else "–"
    return summary.folder.name, summary.origin, size, _score(summary), _describe_progress(summary)


def _score(summary: RunSummary) -> str:
    """Return the accuracy of a classifier, the BLEU of a run that translates, or bits/byte."""
    if summary.accuracy is not None:
        return f"{summary.accuracy:.1%} accuracy"
    if summary.state.best_bleu is not None:
        return f"{summary.state.best_bleu:.1f} BLEU"
    return format_value(summary.bits_per_byte, 4)


def _describe_progress(summary: RunSummary) -> str:
    state = summary.state
    if summary.running_step is not None:
        return f"running, step {summary.running_step:,}"
    return f"{state.step:,}" if state.finished else f"{state.step:,} of {summary.steps:,}"


def _summary_to_dict(summary: RunSummary) -> dict[str, Any]:
    return {
        "run": str(summary.folder), "preset": summary.config.preset, "origin": summary.origin,
        "running_step": summary.running_step, "bits_per_byte": summary.bits_per_byte,
        "accuracy": summary.accuracy, "bleu": summary.state.best_bleu, "parameters": summary.parameters,
        "trained_parameters": summary.trainable_parameters, "base": summary.base, "lora_rank": summary.config.lora.rank,
        "planned_steps": summary.steps, **vars(summary.state),
    }  # fmt: skip


def plot(
    run: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="One or more runs.", autocompletion=completion.complete_runs),
    ],
    metric: _What = _NLL,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a picture, .png or .svg.")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            "--width", min=20, max=1000, metavar="N", help="Columns of the drawing. [default: the terminal's]"
        ),
    ] = None,
    height: Annotated[int, typer.Option("--height", min=3, max=1000, metavar="N", help="Lines of the drawing.")] = 16,
) -> None:
    """Plot a metric of one or more runs.

    Examples:
      lm plot runs/novel
      lm plot runs/* --what validation_loss
      lm plot runs/novel --what learning_rate -o rate.svg
    """
    chosen = _choose_curves(run, metric)
    if out is not None:
        _write_picture(chosen, metric, out)
        return
    curves = {format_label(name): (curve.steps, curve.values) for name, curve in chosen.items()}
    width = width or min(get_terminal_size().columns, 120)
    print(plot_curves(curves, title=format_label(metric), width=width, height=height, colour=is_colour_enabled()))


def _choose_curves(runs: Sequence[Path], metric: str) -> dict[str, MetricCurve]:
    """Return the curves by run, skipping runs without; raises the first error if none is left."""
    chosen, problems = {}, []
    for folder in runs:
        try:
            chosen[str(folder)] = _read_curve(folder, metric)
        except LMError as error:
            problems.append(error)
    if not chosen:
        raise problems[0]
    for problem in problems:
        print_note(f"left out: {problem}")
    return chosen


def _read_curve(run: Path, metric: str) -> MetricCurve:
    curves = run_summaries.load_curves(run)
    if metric not in curves:
        raise UsageError(f"{run}: no {metric!r}{did_you_mean(metric, curves)}; there is {', '.join(curves)} (--what)")
    return curves[metric]


def _write_picture(chosen: Mapping[str, MetricCurve], metric: str, out: Path) -> None:
    if out.suffix not in (".png", ".svg"):
        raise UsageError(f"{out}: a picture is a .png or an .svg (--out)")
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, curve in chosen.items():
        axes.plot(curve.steps, curve.values, label=name, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(pyplot, figure, out)
