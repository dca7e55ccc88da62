"""`lm runs` and `lm plot` list runs and draw their curves; `lm info` says what one is and costs, and shows its plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from cli import arguments
from cli.arguments import AsJson
from cli.console import (
    format_count,
    format_json_line,
    format_label,
    format_number_of,
    format_value,
    is_colour_enabled,
    print_note,
    print_notes,
    print_paragraph,
)
from cli.loading import run_argument
from lm.config.presets import PRESETS, build_run_config
from lm.config.run_config import SECTIONS, RunConfig, setting_values
from lm.config.run_spec import is_user_given
from lm.config.settings import LENGTHS, list_all_settings
from lm.errors import InputError, UsageError
from lm.run_folder import RUNS, find_checkpoint, is_run, load_config, load_state, verify_checkpoint
from lm.training import run_log

_MAX_WIDTH, _HEIGHT = 120, 16


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = RUNS,
    *,
    as_json: AsJson = False,
) -> None:
    """List runs: preset, size, best score, progress.

    Those changed last stand at the end; a run that a process is training now says so. Scores are those of the split
    that the run held out: bits/byte, but the accuracy of masked models and the BLEU of runs that translate.

    Examples:
      lm runs
      lm runs experiments/ --json
    """
    from cli.console.figures import print_table

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
    from cli.console.figures import load_pyplot, plot_curves, save_figure

    if out is not None and out.suffix not in (".png", ".svg"):
        raise UsageError(f"{out}: a picture is a .png or an .svg (--out)")
    curves, missing = {}, list[str]()
    for run in runs:
        of_run = run_log.load_curves(run)
        if metric in of_run:
            curves[format_label(run)] = list(of_run[metric]), list(of_run[metric].values())
        else:
            missing.append(f"{run}: the log has no {metric!r}, but {', '.join(of_run) or 'nothing'} (--what)")
    if not curves:
        raise InputError(missing[0])
    print_notes(missing)
    if out is None:
        width = min(get_terminal_size().columns, _MAX_WIDTH)
        title = format_label(metric)
        print(plot_curves(curves, title=title, width=width, height=_HEIGHT, colour=is_colour_enabled()))
        return
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(layout="constrained")
    for points in curves.values():
        axes.plot(*points)
    axes.set(xlabel="step", ylabel=metric.replace("_", " "))
    axes.legend(axes.lines, list(curves))
    save_figure(pyplot, figure, out)


_WEAK = ("from_run", "default")
"""Reasons that say less than others of the same row."""


def print_plan(config: RunConfig, print_line: Callable[[str], object]) -> None:
    """Print a plan as a table, and what was changed later."""
    for name, value, by in [("plan", "", "chosen by"), *_rows(config)]:
        print_line(f"{name:<14} {value:<42} {by}".rstrip())
    for change in config.plan.changes if config.plan else ():
        print_line(change)


def _rows(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and reason of each decision that the user may want to change."""
    from lm.model.cost import total_parameters

    model, training, plan = config.model, config.training, config.plan
    assert plan is not None
    reasons = plan.reasons

    def because(*names: str) -> str:
        known = [reasons[name] for name in names if name in reasons]
        return min(known, key=lambda reason: (reason == "default", reason in _WEAK), default="")

    if training.budget is not None:
        yield "time", training.budget, because("training.budget")
    layers = format_number_of(model.n_layers, "layer")
    if model.is_encoder_decoder:
        layers = f"{model.n_encoder_layers} + {layers}"
    if model.members > 1:
        layers = f"{model.members} × {layers}"
    chosen = because("preset") if reasons.get("preset") == "budget" else f"preset {config.preset}"
    by = min((because("model.n_layers", "model.d_model"), chosen), key=lambda reason: reason == "default")
    yield "model", f"{layers}, {model.d_model} wide, {format_count(total_parameters(model))} parameters", by
    kind = f"{config.tokenizer.kind}{', inline casing' if config.tokenizer.inline_casing else ''}"
    vocabulary = f"{model.vocab_size:,} tokens ({kind})"
    by = plan.tokenizer or because(*(f"tokenizer.{name}" for name in ("vocab_size", "kind", "merges", "inline_casing")))
    yield "vocabulary", vocabulary, by
    yield "context", f"{model.context_length:,} tokens", because("model.context_length")
    tokens = training.batch_tokens
    batch = f"{training.batch_size:,} sequences" if tokens is None else f"{tokens:,} tokens"
    yield "batch", batch, because("training.batch_tokens", "training.batch_size")
    length = f"{'about ' if plan.budget_seconds else ''}{plan.steps:,} steps, {plan.epochs:.1f} epochs"
    by = "useful epochs" if plan.is_limited else because(*(f"training.{name}" for name in LENGTHS))
    yield "length", length, by
    rate = f"{training.learning_rate:g} ({training.schedule}), {training.optimizer}"
    yield "learning rate", rate, because("training.learning_rate")
    for key in ("model.dropout", "training.weight_decay", "training.r_drop", "parallel.bpe_dropout"):
        section, name = key.split(".")
        if value := getattr(getattr(config, section), name):
            yield name.replace("_", " "), f"{value:g}", because(key)
    for teacher in training.teacher:
        yield "teacher", teacher, because("training.teacher")
    interval = f"every {training.evaluate_every:,} steps" if training.evaluate_every else "at the end"
    yield "evaluation", interval, because("training.evaluate_every")
    yield (
        "hardware",
        f"{plan.dtype} on {plan.device}, {format_number_of(plan.threads, 'thread')}",
        because("hardware.dtype", "hardware.device", "hardware.threads"),
    )
    yield "seed", str(training.seed), because("training.seed")
    yield "corpus", ", ".join(plan.files), ""


_INDENT = 26


def info(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run, checkpoint or preset; without one, all presets.",
            autocompletion=arguments.complete_runs_or_presets,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a run or preset: parameters, memory, FLOPs.

    Of a run the settings that were given are shown, and its plan; of a preset those with other values than the
    defaults. Costs with other settings are shown by lm train --dry-run.

    Examples:
      lm info
      lm info gpt2
      lm info runs/novel --json
    """
    from cli.console.figures import print_table
    from lm.model.cost import total_parameters

    if target is None:
        sizes = {name: total_parameters(build_run_config(name).model) for name in PRESETS}
        if as_json:
            print(format_json_line(sizes))
        else:
            rows = [(name, format_count(size), PRESETS[name].summary) for name, size in sizes.items()]
            print_table(("preset", "parameters", "description"), rows)
        return
    facts: dict[str, Any] = {}
    if Path(target).exists() and (target not in PRESETS or is_run(Path(target))):
        checkpoint = find_checkpoint(Path(target), which="last")
        verify_checkpoint(checkpoint)
        config, state = load_config(checkpoint), load_state(checkpoint)
        facts = {"checkpoint": str(checkpoint), "progress": dataclasses.asdict(state)}
    else:
        config = build_run_config(target)
    facts = {**_compute_costs(config), **facts}
    if as_json:
        print(format_json_line({"name": target, "preset": config.preset, **facts, "config": config.to_dict()}))
        return
    for name, value in [*_changed_settings(config), *facts.items()]:
        print_paragraph(f"{name.replace('_', ' '):<{_INDENT}}{format_label(_format(value))}", indent=_INDENT)
    if config.plan is not None:
        print()
        print_plan(config, lambda line: print(format_label(line)))


def _compute_costs(config: RunConfig) -> dict[str, Any]:
    """Compute the costs of a model by the keys of `lm info --json`, without absent parts."""
    from lm.model import cost
    from lm.training.objective import training_state_bytes

    model, training = config.model, config.training
    parts = {part: count for part, count in cost.parameters_by_part(model, config.lora).items() if count}
    return {
        "parameters": {**parts, "total": sum(parts.values())},
        "active_parameters": cost.active_parameters(model),
        "training_bytes": training_state_bytes(config),
        "cache_bytes_per_token": cost.cache_bytes_per_token(model),
        "training_flops_per_token": cost.training_flops_per_token(
            model,
            predicted_fraction=training.masking_rate if model.is_masked else 1.0,
            forward_passes=training.forward_passes,
            lora=config.lora,
        ),
    }


def _changed_settings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield for each section the settings that differ from their defaults; of a trained run those that were given."""
    values, reasons = setting_values(config), config.plan.reasons if config.plan else {}
    for section, kind in SECTIONS.items():
        settings = list_all_settings({section: kind})
        shown = [each for each in settings if values[each.key] != each.default and is_user_given(reasons.get(each.key))]
        changed = [f"{each.name} {values[each.key]}" for each in shown]
        if changed:
            yield section, ", ".join(changed)


def _format(value: Any) -> str:
    """Format a text, a number, or several of them by name."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, float):
        value = float(f"{value:.4g}")
    return format_count(value) if isinstance(value, int | float) and value > 9999 else str(value)
