"""The plan of a new run: what was chosen and by what, what to expect, and the command that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from cli.console.escapes import harmless
from cli.console.messages import fact, note
from cli.console.numbers import count, duration, many, quantity, size, threads
from lm.config.options import Option, list_options
from lm.config.run import SECTIONS, RunConfig
from lm.config.run_spec import RunSpec
from lm.config.training import LENGTHS
from lm.data.training_data import TrainingData
from lm.model.cost import parameters_by_part
from lm.training import step_timing
from lm.training.loop import batch_flops
from lm.training.memory import estimate_memory
from lm.training.regularisation import estimate_bits_per_byte
from lm.training.resolve import NOVEL, BudgetForecast
from lm.training.trainer import Planned

_SECONDS_TO_MEASURE = 1.5
_PROGRAM = 3.5e8
"""Bytes of a process that has imported torch, before there is a model."""
_AROUND = (0.88, 1.02)
"""Of the loss that n-gram models let expect, the fraction that training reached on four corpora (docs/recipe.md)."""
_BATCHES_LOOKED_AT = 20  # batches of pairs differ in their shapes
_FEWEST_STEPS = 50
_TOKENS_TO_LEARN_FROM = 1_000_000  # before it has seen so many, a model does not do what can be expected
_TARGETS_TO_LEARN_FROM = 200_000  # before it has seen so many tokens of them, a model does not translate
_NOT_REPEATED = ("default", "other settings", "preset", "from_run")
"""What chose values that a command line need not name."""

Row = tuple[str, str, str]
"""A setting, its value, and what chose it."""


def show_plan(event: Planned) -> None:
    """Print the plan on stderr as a table, and warn of what it is too short for."""
    rows = [("plan", "", "chosen by"), *plan_rows(event)]
    names, values = (max(len(row[place]) for row in rows) for place in (0, 1))
    for name, value, by in rows:
        note(f"{name:<{names}}  {value:<{values}}  {by}".rstrip())
    if event.forecast is not None:
        _warn(event, event.forecast)


def plan_rows(event: Planned) -> Iterator[Row]:
    """Yield a row for each decision that a person may want to make otherwise."""
    config, reasons, data, forecast = event.config, event.reasons, event.data, event.forecast
    model, training, plan = config.model, config.training, config.plan
    assert plan is not None
    parameters = sum(parameters_by_part(model).values())
    layers = many(model.n_layers, "layer")
    if model.is_encoder_decoder:
        layers = f"{model.n_encoder_layers} + {layers}"
    if training.budget is not None:
        yield "time", training.budget, reasons["training.budget"]
    shape = f"{layers}, {model.d_model} wide, {count(parameters)} parameters"
    preset = reasons.get("preset", "given")
    yield "model", shape, f"preset {config.preset}" if preset != "budget" else "time and corpus"
    tokenizer = event.corpus.tokenizer
    kind = {"bpe": "BPE tokens", "char": "characters", "byte": "bytes"}.get(tokenizer.kind, "tokens")
    if tokenizer.merges_within_characters:
        kind = "characters and bytes"
    chosen = _by(reasons, "tokenizer.vocab_size", "tokenizer.kind", "tokenizer.merges")
    yield "vocabulary", f"{model.vocab_size:,} {kind}", chosen
    yield "context", many(model.context_length, "token"), _by(reasons, "model.context_length")
    yield "batch", data.describe_batch_size(), _by(reasons, "training.batch_tokens", "training.batch_size")
    epochs = plan.steps / data.steps_per_epoch
    length = f"{'about ' if training.budget else ''}{many(plan.steps, 'step')}, {epochs:.1f} epochs"
    chosen = "time" if training.budget else _by(reasons, *(f"training.{name}" for name in LENGTHS))
    yield "length", length, chosen
    rate = f"{training.learning_rate:g} ({training.schedule}), {training.optimizer}"
    yield "learning rate", rate, _by(reasons, "training.learning_rate")
    yield "dropout", f"{model.dropout:g}", _by(reasons, "model.dropout")
    yield "weight decay", f"{training.weight_decay:g}", _by(reasons, "training.weight_decay")
    if training.r_drop:
        yield "R-Drop", f"{training.r_drop:g}, two passes of each batch", _by(reasons, "training.r_drop")
    if config.parallel.bpe_dropout:
        yield "BPE dropout", f"{config.parallel.bpe_dropout:g}", _by(reasons, "parallel.bpe_dropout")
    every = f"every {training.evaluate_every:,} steps" if training.evaluate_every else "at the end"
    yield "evaluation", every, _by(reasons, "training.evaluate_every")
    yield "arithmetic", f"{plan.dtype} on {plan.device}, {threads(plan.threads)}", _by(reasons, "hardware.dtype")
    yield "FLOPs", quantity(plan.steps * _flops_of_a_step(config, data), "FLOPs"), ""
    if forecast is not None and len(forecast.ngram_bits) > 1:
        yield "expected", _expected(forecast), f"n-gram baseline: {min(forecast.ngram_bits):.2f}"


def _by(reasons: Mapping[str, str], *names: str) -> str:
    """What chose one of some settings: of several, rather what is no default, nor a preset's."""
    found = [reasons[name] for name in names if name in reasons]
    by = min(found, key=lambda each: (each == "default", each in _NOT_REPEATED), default="")
    return "time and corpus" if by == "budget" else by


def _expected(forecast: BudgetForecast) -> str:
    """The bits/byte to expect of held-out text."""
    least, most = (factor * estimate_bits_per_byte(forecast.ngram_bits) for factor in _AROUND)
    if forecast.tokens < _TOKENS_TO_LEARN_FROM:
        return f"{least:.2f} bits/byte or more"
    return f"{least:.2f} to {most:.2f} bits/byte"


def _warn(event: Planned, forecast: BudgetForecast) -> None:
    """Warn where a budget is too short for what it is to bring, or text repeats its patterns."""
    budget = str(event.config.training.budget)
    if forecast.is_regularised and forecast.novelty < NOVEL and forecast.epochs >= 1:
        worth = f"{forecast.epochs:.1f} epochs count as {forecast.novelty * forecast.epochs:.1f}"
        fact("note", f"the text repeats its patterns, so its {worth} where regularisation is chosen")
    if event.config.model.translates and forecast.tokens < _TARGETS_TO_LEARN_FROM:
        enough = event.spent + forecast.steps * forecast.step_seconds * _TARGETS_TO_LEARN_FROM / forecast.tokens
        too_few = f"{count(forecast.tokens)} tokens of targets teach hardly any translation"
        fact("warning", f"{too_few}: {duration(enough)} or more would be enough to begin with (--budget)")
    warn_of_few_steps(forecast.steps, f"{budget} is enough for about")
    if forecast.evaluation_seconds > forecast.evaluation_limit:
        taken = f"one evaluation and checkpoint take {duration(forecast.evaluation_seconds)}"
        limit = f"more than the {duration(forecast.evaluation_limit)} of {budget} that are for them"
        fact("warning", f"{taken}, {limit}: hold out less (--validation), or give more time (--budget)")


def warn_of_few_steps(steps: float, enough_for: str) -> None:
    """Warn on stderr if there are, or were, so few steps that little can be learned in them.

    Args:
        steps: how many.
        enough_for: the beginning of the sentence, down to "enough for".
    """
    if steps < _FEWEST_STEPS:
        only = f"{many(max(1, round(steps)), 'step')} only"
        advice = "more time would teach more, or a smaller model or batch (--budget, --preset, --batch-size)"
        fact("warning", f"{enough_for} {only}: {advice}")


def show_dry_run(event: Planned, spec: RunSpec) -> None:
    """Print what the run would take, which may have to be measured, and the command that repeats it."""
    config = event.config
    assert config.plan is not None
    if config.training.budget is not None:
        fact("time", f"{config.training.budget}, {duration(event.spent)} of them gone")
    else:
        speed = step_timing.measure_speed(config, event.corpus, event.data, seconds=_SECONDS_TO_MEASURE)
        fact(
            "time",
            f"about {duration(config.plan.steps * speed.step_seconds)} and "
            f"{speed.evaluation_cost.loss_seconds:.1f} s for each evaluation",
        )
    memory = _PROGRAM + estimate_memory(config, processes=1, dtype=config.plan.dtype).total
    fact("memory", f"about {size(memory)}")
    print(harmless(command(event, spec)))


def command(event: Planned, spec: RunSpec) -> str:
    """Return the command line that trains the planned run with every choice given explicitly."""
    config, plan, words = event.config, event.config.plan, ["lm", "train", *spec.data.text]
    assert plan is not None
    for name in ("source", "target", "pairs", "heads"):
        words += [word for file in getattr(spec.data, name) for word in (f"--{name}", file)]
    for name in ("validation_source", "validation_target", "validation_heads"):
        if value := getattr(spec.data, name):
            words += [f"--{name.replace('_', '-')}", value]
    named = {"--from": spec.from_run, "--tokenizer": spec.tokenizer, "-o": spec.out}
    words += [word for flag, value in named.items() if value is not None for word in (flag, value)]
    is_own = spec.from_run is None or event.reasons.get("preset") != "default"  # with --from a preset is a choice
    words += ["--preset", str(config.preset)] if config.preset and is_own else []
    for section, kind in SECTIONS.items():
        for option in list_options(kind):
            by = event.reasons.get(f"{section}.{option.name}", "default")
            if by not in _NOT_REPEATED and (section, option.name) not in _BY_PLAN:
                words += _typed(option, getattr(getattr(config, section), option.name))
    words += ["--steps", str(plan.steps), "--dtype", plan.dtype, "--threads", str(plan.threads)]
    if config.training.budget is not None:
        words += ["--schedule", "wsd"]
    return shlex.join(words)


_BY_PLAN = {
    ("model", "vocab_size"), ("model", "source_vocab_size"), ("model", "labels"), ("hardware", "dtype"),
    ("hardware", "threads"), ("training", "schedule"), *(("training", name) for name in LENGTHS),
}  # fmt: skip
"""Settings that follow from the corpus, or that the plan says."""


def _typed(option: Option, value: Any) -> list[str]:  # noqa: ANN401
    """The words that set an option; none where that is no flag's value."""
    if value is None:
        return []
    if option.kind is bool:
        return [option.flag if value else f"--no-{option.flag[2:]}"]
    if option.kind is tuple:
        return [word for each in value for word in (option.flag, str(each))]
    return [option.flag, str(value)]


def _flops_of_a_step(config: RunConfig, data: TrainingData) -> float:
    """Return the mean FLOPs of a step, by the first batches."""
    consumed, flops = 0, 0.0
    for _ in range(_BATCHES_LOOKED_AT):
        batch = data.batch(consumed)
        consumed, flops = consumed + batch.rows, flops + batch_flops(config, batch)
    return flops / _BATCHES_LOOKED_AT


def shortest_seconds(config: RunConfig, data: TrainingData, rate: float) -> float:
    """Return the seconds that all planned steps take at a number of FLOP/s."""
    assert config.plan is not None
    return config.plan.steps * _flops_of_a_step(config, data) / rate
