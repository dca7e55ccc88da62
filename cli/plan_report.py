"""The plan of a run: its settings with the reason of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cli.console.text import format_count, format_number_of
from lm.config.run_config import RunConfig
from lm.config.settings import LENGTHS

_WEAK = ("from_run", "default")
"""Reasons that say less than others of the same row."""


def print_plan(config: RunConfig, reasons: Mapping[str, str], print_line: Callable[[str], object]) -> None:
    """Print a plan as a table, and what was changed later.

    Args:
        reasons: of each setting, by names such as "training.steps".
    """
    for name, value, by in [("plan", "", "chosen by"), *_rows(config, reasons)]:
        print_line(f"{name:<14} {value:<42} {by}".rstrip())
    for change in config.plan.changes if config.plan else ():
        print_line(change)


def _rows(config: RunConfig, reasons: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and reason of each decision that the user may want to change."""
    from lm.model.cost import total_parameters

    model, training, plan = config.model, config.training, config.plan
    assert plan is not None

    def because(*names: str) -> str:
        known = [reasons[name] for name in names if name in reasons]
        return min(known, key=lambda reason: (reason == "default", reason in _WEAK), default="")

    if training.budget is not None:
        yield "time", training.budget, because("training.budget")
    layers = f"{model.n_encoder_layers} + {model.n_layers}" if model.is_encoder_decoder else model.n_layers
    chosen = because("preset") if reasons.get("preset") == "budget" else f"preset {config.preset}"
    by = "from_run" if reasons.get("model.d_model") == "from_run" else chosen
    yield "model", f"{layers} layers, {model.d_model} wide, {format_count(total_parameters(model))} parameters", by
    vocabulary = f"{model.vocab_size:,} tokens ({config.tokenizer.kind})"
    yield "vocabulary", vocabulary, because("tokenizer.vocab_size", "tokenizer.kind", "tokenizer.merges")
    yield "context", f"{model.context_length:,} tokens", because("model.context_length")
    tokens = training.batch_tokens
    batch = f"{training.batch_size:,} sequences" if tokens is None else f"{tokens:,} tokens"
    yield "batch", batch, because("training.batch_tokens", "training.batch_size")
    length = f"{'about ' if training.budget else ''}{plan.steps:,} steps, {plan.epochs:.1f} epochs"
    by = "useful epochs" if plan.is_limited else because(*(f"training.{name}" for name in LENGTHS))
    yield "length", length, by
    rate = f"{training.learning_rate:g} ({training.schedule}), {training.optimizer}"
    yield "learning rate", rate, because("training.learning_rate")
    for key in ("model.dropout", "training.weight_decay", "training.r_drop", "parallel.bpe_dropout"):
        section, name = key.split(".")
        if value := getattr(getattr(config, section), name):
            yield name.replace("_", " "), f"{value:g}", because(key)
    interval = f"every {training.evaluate_every:,} steps" if training.evaluate_every else "at the end"
    yield "evaluation", interval, because("training.evaluate_every")
    yield (
        "hardware",
        f"{plan.dtype} on {plan.device}, {format_number_of(plan.threads, 'thread')}",
        because("hardware.dtype"),
    )
    yield "seed", str(training.seed), because("training.seed")
    yield "corpus", plan.data, ""
