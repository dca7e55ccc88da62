"""`lm info`: what a run or preset is, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import completion
from cli.arguments import AsJson
from cli.console.text import (
    format_count,
    format_duration,
    format_json_line,
    format_label,
    format_perplexity,
    format_quantity,
    print_paragraph,
)
from cli.options import Options, with_settings
from cli.plan_report import changed_rows, plan_rows, print_plan
from lm.config.presets import PRESETS, build_run_config
from lm.config.run_config import SECTIONS, RunConfig
from lm.config.settings import list_all_settings, overlay
from lm.errors import InputError
from lm.run_folder import find_checkpoint, load_config, load_state, verify_checkpoint
from lm.training.run_log import RunLog, entries

_SHAPE = ("n_encoder_layers", "n_layers", "d_model", "n_heads", "context_length", "vocab_size")
_INDENT = 26


@with_settings(SECTIONS, "")
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
    options: Options,
) -> None:
    """Show a run or preset: parameters, memory, FLOPs.

    Settings are shown if they differ from their defaults. Costs are those with the given settings.

    Examples:
      lm info
      lm info gpt2
      lm info runs/novel --json
    """
    from cli.console.tables import print_table

    if target is None:
        from lm.model.cost import total_parameters

        presets = {name: total_parameters(build_run_config(name).model) for name in PRESETS}
        if as_json:
            rows = {name: {"parameters": presets[name], "summary": row.summary} for name, row in PRESETS.items()}
            print(format_json_line(rows))
            return
        print_table(
            ("preset", "parameters", "description"),
            [(name, format_count(presets[name]), row.summary) for name, row in PRESETS.items()],
        )
        return
    changed = {section: options.typed(section) for section in SECTIONS}
    facts: dict[str, Any] = {}
    if len(Path(target).parts) == 1 and not Path(target).exists():
        config = build_run_config(target, changed)
    else:
        config, facts = _read_run(target)
        sections = {name: kind(**overlay(config.to_dict()[name], changed[name])) for name, kind in SECTIONS.items()}
        config = config.replace(**sections)
    costs = _compute_costs(config)
    if as_json:
        values = {"name": target, "preset": config.preset, **costs, "config": config.to_dict(), **facts}
        print(format_json_line(values))
        return
    parameters = costs["parameters"]
    table = [(part, f"{count:,}", f"{count / parameters['total']:.1%}") for part, count in parameters.items()]
    print_table(("part", "parameters", "fraction"), table)
    print()
    for name, text in [*_describe_settings(config), *_describe_costs({**costs, **facts}, config)]:
        print_paragraph(f"{name:<{_INDENT}}{format_label(text)}", indent=_INDENT)
    if config.plan is not None:
        log = RunLog(Path(facts["checkpoint"]).parent.parent)
        planned = [*plan_rows(config, parameters["total"], log.reasons()), *changed_rows(entries(log.decisions))]
        print()
        print_plan(planned, lambda line: print(format_label(line)))


def _read_run(target: str) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration of a run at its last checkpoint, and what else its folder states."""
    if not Path(target).exists():
        raise InputError(f"{target}: neither a run nor a preset; `lm info` lists presets")
    folder = find_checkpoint(Path(target), which="last")
    verify_checkpoint(folder)
    from lm.adapter_base import read_base_path
    from lm.engine.fastest_dtype import read_recorded_dtypes
    from lm.tokenizer.chat_template import read_chat_template
    from lm.training.run_summaries import read_expert_load

    config, state, template = load_config(folder), load_state(folder), read_chat_template(folder)
    facts: dict[str, Any] = {
        "checkpoint": str(folder),
        "progress": dataclasses.asdict(state),
        "base": read_base_path(folder) if config.lora else None,
        "chat_template": template is not None,
        "decoding_dtypes": read_recorded_dtypes(find_checkpoint(Path(target))),
        "expert_use": read_expert_load(folder.parent.parent, step=state.step) if config.model.experts else None,
    }
    return config, {name: value for name, value in facts.items() if value}


def _compute_costs(config: RunConfig) -> dict[str, Any]:
    """Compute the costs of a model by the keys of `lm info --json`, without absent parts."""
    from lm.model import cost
    from lm.training.planning.hardware import training_state_bytes

    model, training, total = config.model, config.training, cost.total_parameters(config.model)
    parts = {part: count for part, count in cost.parameters_by_part(model, config.lora).items() if count}
    costs: dict[str, Any] = {
        "parameters": {**parts, "total": sum(parts.values())},
        "active_parameters": cost.active_parameters(model),
        "weights_bytes": {"float32": 4 * total, "bfloat16": 2 * total},
        "training_bytes": training_state_bytes(config),
        "cache_bytes_per_token": cost.cache_bytes_per_token(model),
        "training_flops_per_token": cost.training_flops_per_token(
            model,
            predicted_fraction=training.masking_rate if model.is_masked else 1.0,
            forward_passes=training.forward_passes,
            lora=config.lora,
        ),
    }
    return costs


def _describe_settings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the shape of a model, and for each section the settings that differ from their defaults."""
    values = config.to_dict()
    yield "shape", ", ".join(f"{name} {values['model'][name]:,}" for name in _SHAPE if values["model"][name])
    if labels := config.model.labels or config.label_completions:
        yield "labels", f"{len(labels)}: {', '.join(label.strip() for label in labels)}"
    for section in SECTIONS:
        changed = {
            setting.name: values[section][setting.name]
            for setting in list_all_settings({section: SECTIONS[section]})
            if values[section][setting.name] != setting.default and setting.name not in _SHAPE
        }
        if changed:
            yield section, ", ".join(f"{name} {value}" for name, value in changed.items())


def _describe_costs(values: Mapping[str, Any], config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the costs, and what the folder of a run states, by the names that they have in JSON."""
    for name, value in values.items():
        if name == "progress":
            planned = f" of {config.plan.steps:,}" if config.plan else ""  # averaged checkpoints have no plan
            spent = f"{format_count(value['tokens'])} tokens, {format_quantity(value['flops'], 'FLOPs')}"
            yield "trained", f"step {value['step']:,}{planned}: {spent}, {format_duration(value['training_seconds'])}"
            if (loss := value["best_loss"]) is not None:
                score = f"validation loss {loss:.4f}, perplexity {format_perplexity(loss)}"
                yield "best", f"{score}, at step {value['best_step']:,}"
        elif name != "parameters":
            yield name.replace("_", " "), _format(value)


def _format(value: Any) -> str:
    """Format a name, a number, fractions of experts, or several of them by name."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " ".join(f"{fraction:.0%}" for fraction in value)
    return value if isinstance(value, str) else format_count(value)
