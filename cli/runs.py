"""`lm runs` and `lm plot`: list runs and draw their curves."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

from cli import completion
from cli.arguments import AsJson
from cli.console.colours import is_colour_enabled
from cli.console.text import format_count, format_json_line, format_label, format_trainable, format_value, print_note
from lm.config.settings import did_you_mean
from lm.errors import UsageError
from lm.run_folder import RUNS
from lm.training import run_summaries

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

    summaries, damaged = run_summaries.list_runs(folder)
    for problem in damaged:
        print_note(f"left out: {problem}")
    rows, reports = [], []
    for run in summaries:
        config, state = run.config, run.state
        progress = f"{state.step:,}" if state.finished else f"{state.step:,} of {run.steps:,}"
        if run.running_step is not None:
            progress = f"running, step {run.running_step:,}"
        score = format_value(run.bits_per_byte, 4) if state.best_bleu is None else f"{state.best_bleu:.1f} BLEU"
        if run.accuracy is not None:
            score = f"{run.accuracy:.1%} accuracy"
        size = format_count(run.parameters) if run.parameters else "–"
        rows.append((run.folder.name, run.origin, size, score, progress))
        reports.append({
            "run": str(run.folder), "preset": config.preset, "origin": run.origin, "running_step": run.running_step,
            "bits_per_byte": run.bits_per_byte, "accuracy": run.accuracy, "bleu": state.best_bleu,
            "parameters": run.parameters, "trained_parameters": run.trainable_parameters, "base": run.base,
            "lora_rank": config.lora.rank, "planned_steps": run.steps, **vars(state),
        })  # fmt: skip
    if as_json:
        print(format_json_line(reports))
        return
    if not rows:
        print_note(f"{folder}: no runs")
        return
    print_table(("run", "preset", "size", "bits/byte", "steps"), rows)
    for run in summaries:
        if run.base:
            parameters = format_trainable(run.trainable_parameters, run.parameters)
            print_note(f"{run.folder}: adapters of rank {run.config.lora.rank} to {run.base}: {parameters}")


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="One or more runs.", autocompletion=completion.complete_runs),
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
        of_run = run_summaries.load_curves(run)
        if metric in of_run:
            curves[format_label(run)] = of_run[metric].steps, of_run[metric].values
        elif len(runs) > 1:
            print_note(f"left out: {run}: no {metric!r}")
    if not curves:
        raise UsageError(f"{run}: no {metric!r}{did_you_mean(metric, of_run)}; there is {', '.join(of_run)} (--what)")
    if out is None:
        width = min(get_terminal_size().columns, _MAX_WIDTH)
        title = format_label(metric)
        print(plot_curves(curves, title=title, width=width, height=_HEIGHT, colour=is_colour_enabled()))
        return
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, points in curves.items():
        axes.plot(*points, label=name, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(pyplot, figure, out)
