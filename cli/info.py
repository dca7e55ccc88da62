"""`lm info`: what a run or preset is, and what it costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import completion
from cli.console.escapes import format_json_line, format_label
from cli.console.numbers import (
    format_bytes,
    format_count,
    format_duration,
    format_perplexity,
    format_quantity,
    format_trainable,
)
from cli.console.tables import print_table
from lm.adapter_base import read_base_path
from lm.config.model import ModelConfig
from lm.config.presets import PRESETS, build_run_config, is_preset
from lm.config.run_config import RunConfig
from lm.config.settings import did_you_mean
from lm.errors import InputError, UsageError
from lm.run_folder import find_checkpoint, load_config, load_state, verify_checkpoint
from lm.text.records import parse_label
from lm.training.run_summaries import read_expert_load


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
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Memory and communication of each of N processes."),
    ] = None,
    shard: Annotated[bool, typer.Option("--shard", help="With --processes: sharded, as lm train --shard.")] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option("--batch-tokens", metavar="TOKENS", min=1, help="With --processes: global batch size in tokens."),
    ] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option("--micro-batch-size", metavar="N", min=1, help="With --processes: sequences per micro-batch."),
    ] = None,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--checkpoint-activations", help="With --processes: recompute activations.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a run or preset: parameters, memory, FLOPs.

    Examples:
      lm info
      lm info gpt2
      lm info runs/novel --json
      lm info gpt2 --processes 8 --shard --batch-tokens 524288 --micro-batch-size 8
    """
    if target is None:
        _list_presets(as_json)
        return
    config, progress = _find_target(target)
    costs = compute_costs(config)
    report = {"name": target, "preset": config.preset, **costs, "config": config.to_dict(), **progress}
    if processes is not None:
        training = {"batch_tokens": batch_tokens, "micro_batch_size": micro_batch_size,
                    "gradient_checkpointing": gradient_checkpointing or None}  # fmt: skip
        changed = {name: value for name, value in training.items() if value is not None}
        report["per_process"] = compute_costs_per_process(_distribute(config, changed, shard=shard), processes)
    if as_json:
        print(format_json_line(report))
        return
    parameters = report["parameters"]
    rows = [(part, f"{count:,}", f"{100 * count / parameters['total']:.1f}%") for part, count in parameters.items()]
    print_table(("part", "parameters", "fraction"), rows)
    print()
    for name, text in [*_list_facts(report), *_describe_process_costs(report), *_describe_progress(report)]:
        print(f"{name:<12}{format_label(text)}")


def compute_costs(config: RunConfig) -> dict[str, Any]:
    """Compute the costs of a model by the keys of `lm info --json`, without absent parts."""
    from lm.model.cost import (
        active_parameters,
        cache_bytes_per_token,
        parameters_by_part,
        total_parameters,
        training_flops_per_token,
    )
    from lm.optim.optimizers import training_state_bytes

    model, training, total = config.model, config.training, total_parameters(config.model)
    predicted_fraction = training.masking_rate if model.is_masked else 1.0
    parts = {part: count for part, count in parameters_by_part(model, config.lora).items() if count}
    return {
        "parameters": {**parts, "total": sum(parts.values())},
        "active_parameters": active_parameters(model),
        "weights_bytes": {"float32": 4 * total, "bfloat16": 2 * total},
        "training_bytes": training_state_bytes(model, training, config.lora),
        "cache_bytes_per_token": cache_bytes_per_token(model),
        "training_flops_per_token": training_flops_per_token(
            model, predicted_fraction=predicted_fraction, forward_passes=training.forward_passes, lora=config.lora
        ),
    }


def compute_costs_per_process(config: RunConfig, processes: int) -> dict[str, Any]:
    """Compute the memory and communication per step of each process, by the keys of `lm info --json`."""
    from lm.training.planning.memory import estimate_memory

    dtype = "bfloat16" if config.hardware.dtype == "auto" else config.hardware.dtype
    memory = estimate_memory(config, processes=processes, dtype=dtype)
    return {"processes": processes, "dtype": dtype, "total": memory.total, **dataclasses.asdict(memory)}


def _distribute(config: RunConfig, changed: dict[str, Any], *, shard: bool) -> RunConfig:
    """Return a run as distributed over processes, with other training settings; UsageError if a batch is too small."""
    training = dataclasses.replace(config.training, **changed)
    context, tokens = config.model.context_length, changed.get("batch_tokens")
    if tokens is not None and tokens < context:
        raise UsageError(f"--batch-tokens {tokens:,} is less than one sequence of {context:,}; give as many, or more")
    distribution = dataclasses.replace(config.distribution, shard=shard)
    return dataclasses.replace(config, training=training, distribution=distribution)


def _list_presets(as_json: bool) -> None:
    from lm.model.cost import total_parameters

    rows = {name: (total_parameters(build_run_config(name).model), row.summary) for name, row in PRESETS.items()}
    if as_json:
        print(format_json_line({name: {"parameters": n, "summary": summary} for name, (n, summary) in rows.items()}))
        return
    print_table(
        ("preset", "parameters", "description"),
        [(name, format_count(n), summary) for name, (n, summary) in rows.items()],
    )


def _find_target(target: str) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration of a name, and the progress of a run."""
    if is_preset(target) and not Path(target).exists():
        return build_run_config(target), {}
    if not Path(target).exists():
        hint = did_you_mean(target, PRESETS)
        problem = f"{target}: neither a run nor a preset{hint}; `lm info` lists presets"
        raise UsageError(problem) if hint else InputError(problem)  # a misspelled preset, or a missing folder
    folder = find_checkpoint(Path(target), which="last")
    verify_checkpoint(folder)
    from lm.engine.fastest_dtype import read_recorded_dtypes
    from lm.tokenizer.chat_template import read_chat_template

    config, state = load_config(folder), load_state(folder)
    report: dict[str, Any] = {"checkpoint": str(folder), "progress": dataclasses.asdict(state)}
    if recorded := read_recorded_dtypes(find_checkpoint(Path(target))):
        report["decoding_dtypes"] = recorded
    if (template := read_chat_template(folder)) is not None:
        report["chat_template"] = "default" if template.is_default else "own"
    if config.lora:
        report["base"] = read_base_path(folder)
    if config.model.experts:
        report["expert_use"] = read_expert_load(folder.parent.parent, step=state.step)
    return config, report


def _list_facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    model, weights, cache = report["config"]["model"], report["weights_bytes"], report["cache_bytes_per_token"]
    encoder = f"{model['n_encoder_layers']} encoder and " if model["n_encoder_layers"] else ""
    is_recurrent = model["architecture"] != "transformer"
    width = f" of {model['d_head']}" if model["d_head"] else ""
    heads = "" if is_recurrent else f", {model['n_heads']} heads{width}"
    return [
        ("shape", f"{encoder}{model['n_layers']} layers, d_model {model['d_model']}{heads}"),
        ("", f"context {model['context_length']:,}, vocabulary {model['vocab_size']:,}"),
        *(_describe_recurrent_layers(model) if is_recurrent else _describe_blocks(model)),
        *_describe_objective(report),
        *([("chat", _CHAT_TEMPLATES[report["chat_template"]])] if "chat_template" in report else []),
        *_describe_experts(report),
        *_describe_adapters(report),
        ("weights", f"{format_bytes(weights['float32'])} in float32, {format_bytes(weights['bfloat16'])} in bfloat16"),
        (
            "training",
            f"{format_bytes(report['training_bytes'])} for weights, {_describe_train_memory(report)}, "
            "without activations",
        ),
        ("", format_quantity(report["training_flops_per_token"], "FLOPs") + "/token"),
        *[("decoding", f"in {dtype} on {device}") for device, dtype in report.get("decoding_dtypes", {}).items()],
        *([("KV cache", f"{format_bytes(cache)} per token and sequence, in float32")] if cache else []),
    ]


_CHAT_TEMPLATES = {"default": "lm's own chat template; lm chat", "own": "the tokenizer's chat template; lm chat"}


def _describe_process_costs(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the memory and communication of each process, if requested."""
    if (costs := report.get("per_process")) is None:
        return []
    names = ("weights", "gradients", "optimizer", "activations", "loss")
    parts = ", ".join(f"{format_bytes(costs[name])} {name}" for name in names)
    label = "one process" if costs["processes"] == 1 else "per process"
    sent = [("", f"{format_bytes(costs['exchanged'])} sent per step")] if costs["processes"] > 1 else []
    rank = " on rank 0" if costs["processes"] > 1 else ""
    copied = f"{format_bytes(costs['copied'])} more CPU memory{rank} for writing checkpoints"
    return [(label, f"{format_bytes(costs['total'])} in {costs['dtype']}: {parts}"), ("", copied), *sent]


def _describe_blocks(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe transformer blocks; of most settings, only those that differ from their defaults."""
    facts = [("", "decoder-only: source and target in one sequence")] if model["decoder_only"] else []
    facts.append(("block", f"{model['norm_position']}-norm {model['norm']}, {model['activation']}"))
    extras = {
        "qk_norm": "QK-norm", "value_residual": "value residual", "embedding_shortcut": "embedding shortcut",
        "softcap": f"soft-capping {model['softcap']:g}", "parallel_residual": "parallel residual",
        "embedding_norm": "embedding norm", "output_transform": "output transform",
        "output_bias": "output bias", "token_types": f"{model['token_types']} token types",
    }  # fmt: skip
    if shown := [name for field, name in extras.items() if model[field]]:
        facts.append(("", ", ".join(shown)))
    if model["attention"] != "full":
        settings = ModelConfig(**model).attention_settings.items()
        facts.append(
            ("attention", ", ".join([model["attention"], *(f"{name.replace('_', ' ')} {n}" for name, n in settings)]))
        )
    partial = f", partial rotary: {model['rotary_fraction']:.0%} of each head" if model["rotary_fraction"] < 1 else ""
    scaling = f", {model['rope_scaling']} scaling" if model["rope_scaling"] != "none" else ""
    trees = {"none": "", "depth": ", depths in trees", "distance": ", distances in trees",
             "both": ", depths and distances in trees"}  # fmt: skip
    return [*facts, ("positions", model["positions"] + partial + scaling + trees[model["syntax"]])]


def _describe_recurrent_layers(model: dict[str, Any]) -> list[tuple[str, str]]:
    attention = f", {model['recurrent_attention'] or 'additive'} attention" if model["n_encoder_layers"] else ""
    capped = f", soft-capping {model['softcap']:g}" if model["softcap"] else ""
    return [("recurrent", f"{model['architecture'].upper()}{attention.replace('none', 'no')}{capped}")]


def _describe_train_memory(report: dict[str, Any]) -> str:
    """Describe what is stored per weight in training, besides the weight."""
    training = report["config"]["training"]
    moments = {"adamw": "AdamW's two moments", "muon": "Muon's momentum (matrices) or AdamW's two moments (the rest)"}
    adapters = "" if report["config"]["lora"]["rank"] is None else "and of the adapters "
    return f"{adapters}{'EMA weights, ' if training['ema'] else ''}gradients and {moments[training['optimizer']]}"


def _describe_objective(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the labels of a classifier, or the objective of a masked model."""
    model, training = report["config"]["model"], report["config"]["training"]
    labels = model["labels"] or [parse_label(completion) for completion in report["config"]["label_completions"]]
    if labels:
        return [("labels", f"{len(labels)}: {', '.join(labels)}")]
    if model["objective"] != "masked":
        return []
    unit = " of whole words" if training["whole_words"] else ""
    rate = f"masking rate {training['masking_rate']:.0%}{unit}"
    return [("objective", f"masked, bidirectional: {rate}; use lm fill")]


def _describe_experts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the experts, and the fraction of tokens of each at the last evaluation."""
    model = report["config"]["model"]
    if not model["experts"]:
        return []
    interval = "every block" if model["expert_every"] == 1 else f"one block in {model['expert_every']}"
    active = f"{format_count(report['active_parameters'])} active parameters per token"
    used = report.get("expert_use", {}).items()
    return [
        ("experts", f"{model['experts']} in {interval}, top-{model['experts_per_token']}: {active}"),
        *(("", f"{layer}: " + " ".join(f"{fraction:.0%}" for fraction in fractions)) for layer, fractions in used),
    ]


def _describe_adapters(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the adapters and their base run."""
    lora, parameters = report["config"]["lora"], report["parameters"]
    if lora["rank"] is None:
        return []
    trainable = parameters["adapters"] + parameters.get("label head", 0)
    matrices = lora["on"].replace(",", " and ")
    return [
        ("adapters", f"rank {lora['rank']} on {matrices}: {format_trainable(trainable, parameters['total'])}"),
        ("base", report.get("base") or "missing"),
    ]


def _describe_progress(report: dict[str, Any]) -> list[tuple[str, str]]:
    if "progress" not in report:
        return []
    state, plan = report["progress"], report["config"]["plan"]
    spent = f"{format_count(state['tokens'])} tokens, {format_quantity(state['flops'], 'FLOPs')}"
    spent += f", {format_duration(state['training_seconds'])}"
    planned = "" if plan is None else f" of {plan['steps']:,}"  # averaged checkpoints have no plan
    lines = [("trained", f"step {state['step']:,}{planned}: {spent}")]
    if state["best_loss"] is not None:
        loss = state["best_loss"]
        score = f"validation loss {loss:.4f}, perplexity {format_perplexity(loss)}"
        lines.append(("best", f"{score}, at step {state['best_step']:,}"))
    return lines
