"""The plan of a run: its settings with the reason of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cli.console.text import format_count, format_number_of, format_threads
from lm.config.run_config import RunConfig
from lm.config.settings import LENGTHS
from lm.model.cost import total_parameters

_IN_WORDS = {"budget": "time and corpus", "from_run": "base run"}
_WEAK = ("default", "other settings", "preset", "from_run")
"""Reasons that say less than others of the same row."""


def print_plan(config: RunConfig, reasons: Mapping[str, str], print_line: Callable[[str], object]) -> None:
    """Print a plan as a table, and what was changed later.

    Args:
        reasons: of each setting, by names such as "training.steps".
    """
    table = [("plan", "", "chosen by"), *_rows(config, reasons)]
    names = max(len(name) for name, _, _ in table)
    values = max(len(value) for _, value, by in table if by)
    for name, value, by in table:
        print_line(f"{name:<{names}}  {value:<{values}}  {by}".rstrip())
    for change in config.plan.changes if config.plan else ():
        print_line(change)


def _rows(config: RunConfig, reasons: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and reason of each decision that the user may want to change."""
    model, training, plan = config.model, config.training, config.plan
    assert plan is not None

    def because(*names: str) -> str:
        known = [reasons[name] for name in names if name in reasons]
        by = min(known, key=lambda reason: (reason == "default", reason in _WEAK), default="")
        return _IN_WORDS.get(by, by)

    if training.budget is not None:
        yield "time", training.budget, because("training.budget")
    layers = f"{model.n_encoder_layers} + {model.n_layers}" if model.is_encoder_decoder else model.n_layers
    chosen = because("preset") if reasons.get("preset") == "budget" else f"preset {config.preset}"
    by = _IN_WORDS["from_run"] if reasons.get("model.d_model") == "from_run" else chosen
    yield "model", f"{layers} layers, {model.d_model} wide, {format_count(total_parameters(model))} parameters", by
    vocabulary = f"{model.vocab_size:,} tokens ({config.tokenizer.kind})"
    yield "vocabulary", vocabulary, because("tokenizer.vocab_size", "tokenizer.kind", "tokenizer.merges")
    yield "context", format_number_of(model.context_length, "token"), because("model.context_length")
    tokens = training.batch_tokens
    batch = format_number_of(training.batch_size, "sequence") if tokens is None else format_number_of(tokens, "token")
    yield "batch", batch, because("training.batch_tokens", "training.batch_size")
    length = f"{'about ' if training.budget else ''}{format_number_of(plan.steps, 'step')}, {plan.epochs:.1f} epochs"
    by_time = "useful epochs" if plan.is_limited else "time"
    yield "length", length, by_time if training.budget else because(*(f"training.{name}" for name in LENGTHS))
    rate = f"{training.learning_rate:g} ({training.schedule}), {training.optimizer}"
    yield "learning rate", rate, because("training.learning_rate")
    for key in ("model.dropout", "training.weight_decay", "training.r_drop", "parallel.bpe_dropout"):
        section, name = key.split(".")
        if value := getattr(getattr(config, section), name):
            yield name.replace("_", " "), f"{value:g}", because(key)
    interval = f"every {training.evaluate_every:,} steps" if training.evaluate_every else "at the end"
    yield "evaluation", interval, because("training.evaluate_every")
    yield "hardware", f"{plan.dtype} on {plan.device}, {format_threads(plan.threads)}", because("hardware.dtype")
    yield "seed", str(training.seed), because("training.seed")
    yield "corpus", plan.data, ""
