"""`lm info`: what a run or preset is, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import completion
from cli.arguments import AsJson
from cli.console.text import format_count, format_json_line, format_label, print_paragraph
from cli.plan_report import print_plan
from lm.config.presets import PRESETS, build_run_config
from lm.config.run_config import SECTIONS, RunConfig, setting_values
from lm.config.settings import list_all_settings
from lm.run_folder import find_checkpoint, load_config, load_state, verify_checkpoint

_INDENT = 26


def info(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run, checkpoint or preset; without one, all presets.",
            autocompletion=completion.complete_runs_or_presets,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a run or preset: parameters, memory, FLOPs.

    Settings are shown if they differ from their defaults. Costs with other settings are shown by lm train --dry-run.

    Examples:
      lm info
      lm info gpt2
      lm info runs/novel --json
    """
    from cli.console.tables import print_table
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
    if Path(target).exists():
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
        print_plan(config, config.plan.reasons, lambda line: print(format_label(line)))


def _compute_costs(config: RunConfig) -> dict[str, Any]:
    """Compute the costs of a model by the keys of `lm info --json`, without absent parts."""
    from lm.model import cost
    from lm.training.planning.hardware import training_state_bytes

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
    """Yield for each section the settings that differ from their defaults."""
    values = setting_values(config)
    for section, kind in SECTIONS.items():
        settings = list_all_settings({section: kind})
        changed = [f"{each.name} {values[each.key]}" for each in settings if values[each.key] != each.default]
        if changed:
            yield section, ", ".join(changed)


def _format(value: Any) -> str:
    """Format a text, a number, or several of them by name."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, float):
        value = float(f"{value:.4g}")
    return format_count(value) if isinstance(value, int | float) and value > 9999 else str(value)
