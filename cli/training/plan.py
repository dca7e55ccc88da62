"""The plan of a new run: reasons of all choices, expected loss, and an equivalent command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from cli.console.text import (
    escape_controls,
    format_bytes,
    format_count,
    format_duration,
    format_number_of,
    format_quantity,
    format_threads,
    print_labelled,
    print_note,
)
from lm.config.run_config import SECTIONS, RunConfig, setting_values
from lm.config.run_spec import RunSpec, is_user_given
from lm.config.settings import LENGTHS, list_all_settings
from lm.data.training_data import TrainingData
from lm.model.cost import total_parameters
from lm.training import step_timing
from lm.training.loop import batch_flops
from lm.training.planning.memory import estimate_memory
from lm.training.planning.regularisation import estimate_bits_per_byte
from lm.training.planning.resolve import BudgetForecast
from lm.training.trainer import Planned

_SECONDS_TO_MEASURE = 1.5
_PROCESS_BYTES = 3.5e8
"""Bytes of a process that has imported torch."""
_EXPECTED_RANGE = (0.88, 1.02)
"""Range of the loss that training reached on four corpora, relative to the n-gram estimate (docs/lab/recipe.md)."""
_SAMPLED_BATCHES = 20  # batches of pairs differ in shape
_EXPECTED_TOKENS = (1.5e6, 3e6)
"""Training tokens that the range is for; with fewer the loss is higher, with more it may be lower."""
_NOT_REPEATED = ("default", "other settings", "preset", "from_run")
"""Reasons of values that a command line need not repeat."""

_IN_WORDS = {"budget": "time and corpus", "from_run": "base run"}

Row = tuple[str, str, str]
"""A setting, its value, and the reason."""


def show_plan(event: Planned) -> None:
    """Print the plan as a table on stderr."""
    rows = [("plan", "", "chosen by"), *plan_rows(event)]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, value, by in rows:
        print_note(f"{name:<{names}}  {value:<{values}}  {by}".rstrip())


def plan_rows(event: Planned) -> Iterator[Row]:
    """Yield a row for each decision that the user may want to change."""
    config, reasons, data, forecast = event.config, event.reasons, event.data, event.forecast
    model, training, plan = config.model, config.training, config.plan
    assert plan is not None
    parameters = total_parameters(model)
    layers = format_number_of(model.n_layers, "layer")
    if model.is_encoder_decoder:
        layers = f"{model.n_encoder_layers} + {layers}"
    if training.budget is not None:
        yield "time", f"{training.budget}, {event.spent:.1f} s of it start-up", reasons["training.budget"]
    shape = f"{layers}, {model.d_model} wide, {format_count(parameters)} parameters"
    preset = reasons.get("preset", "given")
    preset_name = f"preset {config.preset}" if preset != "budget" else _IN_WORDS[preset]
    yield "model", shape, _IN_WORDS["from_run"] if reasons.get("model.d_model") == "from_run" else preset_name
    tokenizer = event.corpus.tokenizer
    kind = {"bpe": "BPE tokens", "char": "characters", "byte": "bytes"}.get(tokenizer.kind, "tokens")
    if tokenizer.merges_within_characters:
        kind = "characters and bytes"
    chosen = _reason_of(reasons, "tokenizer.vocab_size", "tokenizer.kind", "tokenizer.merges")
    yield "vocabulary", f"{model.vocab_size:,} {kind}", chosen
    yield "context", format_number_of(model.context_length, "token"), _reason_of(reasons, "model.context_length")
    yield "batch", data.describe_batch_size(), _reason_of(reasons, "training.batch_tokens", "training.batch_size")
    epochs = plan.steps / data.steps_per_epoch
    length = f"{'about ' if training.budget else ''}{format_number_of(plan.steps, 'step')}, {epochs:.1f} epochs"
    by_time = "useful epochs" if plan.is_limited else "time"
    chosen = by_time if training.budget else _reason_of(reasons, *(f"training.{name}" for name in LENGTHS))
    yield "length", length, chosen
    rate = f"{training.learning_rate:g} ({training.schedule}), {training.optimizer}"
    yield "learning rate", rate, _reason_of(reasons, "training.learning_rate")
    yield "dropout", f"{model.dropout:g}", _reason_of(reasons, "model.dropout")
    yield "weight decay", f"{training.weight_decay:g}", _reason_of(reasons, "training.weight_decay")
    if training.r_drop:
        yield "R-Drop", f"{training.r_drop:g}, two passes of each batch", _reason_of(reasons, "training.r_drop")
    if config.parallel.bpe_dropout:
        yield "BPE dropout", f"{config.parallel.bpe_dropout:g}", _reason_of(reasons, "parallel.bpe_dropout")
    interval = f"every {training.evaluate_every:,} steps" if training.evaluate_every else "at the end"
    yield "evaluation", interval, _reason_of(reasons, "training.evaluate_every")
    hardware = f"{plan.dtype} on {plan.device}, {format_threads(plan.threads)}"
    yield "hardware", hardware, _reason_of(reasons, "hardware.dtype")
    yield "FLOPs", format_quantity(plan.steps * _mean_step_flops(config, data), "FLOPs"), ""
    if forecast is not None and len(forecast.ngram_bits) > 1 and _has_measured_recipe(reasons):
        yield "expected", _format_expected(forecast), f"n-gram baseline: {min(forecast.ngram_bits):.2f}"


def _reason_of(reasons: Mapping[str, str], *names: str) -> str:
    """Return the reason of some settings, preferring choices over defaults and presets."""
    known = [reasons[name] for name in names if name in reasons]
    by = min(known, key=lambda reason: (reason == "default", reason in _NOT_REPEATED), default="")
    return _IN_WORDS.get(by, by)


def _has_measured_recipe(reasons: Mapping[str, str]) -> bool:
    """Whether model and training are as chosen for time and corpus, for which the expected loss was measured."""
    own = (name for name, by in reasons.items() if name.startswith(("model.", "training.")) and is_user_given(by))
    return reasons["preset"] == "budget" and set(own) <= {"training.budget", "training.seed"}


def _format_expected(forecast: BudgetForecast) -> str:
    """Format the expected bits/byte on held-out text."""
    low, high = (factor * estimate_bits_per_byte(forecast.ngram_bits) for factor in _EXPECTED_RANGE)
    few, many = _EXPECTED_TOKENS
    if forecast.tokens < few:
        return f"at best {low:.2f} bits/byte, likely more"
    if forecast.tokens > many:
        return f"{high:.2f} bits/byte or less"
    return f"{low:.2f} to {high:.2f} bits/byte"


def show_dry_run(event: Planned, spec: RunSpec) -> None:
    """Print the estimated time and memory, and an equivalent command."""
    config = event.config
    assert config.plan is not None
    if config.training.budget is None:
        speed = step_timing.estimate_speed(config, event.corpus, event.data, seconds=_SECONDS_TO_MEASURE)
        print_labelled(
            "time",
            f"about {format_duration(config.plan.steps * speed.step_seconds)} and "
            f"{speed.evaluation_cost.loss_seconds:.1f} s for each evaluation",
        )
    memory = _PROCESS_BYTES + estimate_memory(config, processes=1, dtype=config.plan.dtype).total
    print_labelled("memory", f"about {format_bytes(memory)}")
    print(escape_controls(equivalent_command(event, spec)))


def equivalent_command(event: Planned, spec: RunSpec) -> str:
    """Return the command line that trains the planned run; under a budget, with its number of steps."""
    config, plan, words = event.config, event.config.plan, ["lm", "train", *spec.data.text]
    assert plan is not None
    for name in ("source", "target", "pairs"):
        words += [word for file in getattr(spec.data, name) for word in (f"--{name}", file)]
    words += [word for file in spec.data.heads for word in ("--dependency-heads", file)]
    named = {
        "--validation-source": spec.data.validation_source, "--validation-target": spec.data.validation_target,
        "--validation-dependency-heads": spec.data.validation_heads, "--from": spec.from_run,
        "--tokenizer": spec.tokenizer, "-o": spec.out,
    }  # fmt: skip
    words += [word for flag, value in named.items() if value is not None for word in (flag, value)]
    is_own = spec.from_run is None or event.reasons.get("preset") != "default"
    words += ["--preset", str(config.preset)] if config.preset and is_own else []
    values = setting_values(config)
    for setting in list_all_settings(SECTIONS):
        value, has_effect = values[setting.key], setting.requires is None or setting.requires.is_on(values)
        is_chosen = event.reasons.get(setting.key, "default") not in _NOT_REPEATED and value is not None
        follows = config.training.budget is not None and setting.name in (*LENGTHS, "schedule")
        for text in (
            (value if isinstance(value, tuple) else (value,)) if is_chosen and has_effect and not follows else ()
        ):
            words += ["--set", f"{setting.key}={str(text).lower() if isinstance(text, bool) else text}"]
    if config.training.budget is not None:
        words += ["--steps", str(plan.steps), "--set", "training.schedule=wsd"]
    return shlex.join(words)


def _mean_step_flops(config: RunConfig, data: TrainingData) -> float:
    """Return the mean FLOPs of a step, from the first batches."""
    consumed, flops = 0, 0.0
    for _ in range(_SAMPLED_BATCHES):
        batch = data.batch(consumed)
        consumed, flops = consumed + batch.rows, flops + batch_flops(config, batch)
    return flops / _SAMPLED_BATCHES
