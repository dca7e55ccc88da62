"""`lm runs` and `lm plot`: list runs and draw their curves."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

from cli.arguments import AsJson
from cli.console.colours import is_colour_enabled
from cli.console.text import format_count, format_json_line, format_label, format_value, print_note
from cli.loading import run_argument
from lm.errors import UsageError
from lm.run_folder import RUNS
from lm.training import run_log

_MAX_WIDTH, _HEIGHT = 120, 16


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = RUNS,
    *,
    as_json: AsJson = False,
) -> None:
    """List runs: preset, size, best score, progress.

    Those changed last stand at the end; a run that a process is training now says so. Scores are those of the split
    that the run held out: bits/byte, but the accuracy of classifiers and the BLEU of runs that translate.

    Examples:
      lm runs
      lm runs experiments/ --json
    """
    from cli.console.tables import print_table

    summaries, damaged = run_log.list_runs(folder)
    for problem in damaged:
        print_note(f"left out: {problem}")
    rows, reports = [], []
    for run in summaries:
        state = run.state
        progress = f"{state.step:,}" if state.finished else f"{state.step:,} of {run.steps:,}"
        score = format_value(state.best_bits_per_byte, 4)
        if state.best_bleu is not None:
            score = f"{state.best_bleu:.1f} BLEU"
        elif state.best_accuracy is not None:
            score = f"{state.best_accuracy:.1%} accuracy"
        origin, running = run.config.origin or run.config.preset or "–", "running, " * run.is_running
        rows.append((run.folder.name, origin, format_count(run.parameters), score, running + progress))
        reports.append({
            "run": str(run.folder), "origin": origin, "is_running": run.is_running, "parameters": run.parameters,
            "planned_steps": run.steps, **vars(state),
        })  # fmt: skip
    if as_json:
        print(format_json_line(reports))
    elif rows:
        print_table(("run", "preset", "size", "bits/byte", "steps"), rows)
    else:
        print_note(f"{folder}: no runs")


def plot(
    runs: Annotated[
        list[Path],
        run_argument("RUN…", "One or more runs."),
    ],
    *,
    metric: Annotated[
        str,
        typer.Option(
            "--what",
            metavar="NAME",
            help="Metric: nll, loss, validation_loss, learning_rate, …",
        ),
    ] = "nll",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a picture, .png or .svg.")
    ] = None,
) -> None:
    """Plot a metric of one or more runs.

    Examples:
      lm plot runs/novel
      lm plot runs/* --what validation_loss
      lm plot runs/novel --what learning_rate -o rate.svg
    """
    from cli.console.plots import load_pyplot, plot_curves, save_figure

    if out is not None and out.suffix not in (".png", ".svg"):
        raise UsageError(f"{out}: a picture is a .png or an .svg (--out)")
    curves = {}
    for run in runs:
        of_run = run_log.load_curves(run)
        if metric not in of_run:
            raise UsageError(f"{run}: no {metric!r}; there is {', '.join(of_run)} (--what)")
        curves[format_label(run)] = list(of_run[metric]), list(of_run[metric].values())
    if out is None:
        width = min(get_terminal_size().columns, _MAX_WIDTH)
        title = format_label(metric)
        print(plot_curves(curves, title=title, width=width, height=_HEIGHT, colour=is_colour_enabled()))
        return
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(layout="constrained")
    for name, points in curves.items():
        axes.plot(*points, label=name)
    axes.set(xlabel="step", ylabel=metric.replace("_", " "))
    axes.legend()
    save_figure(pyplot, figure, out)
