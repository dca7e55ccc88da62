"""The plan of a run: its settings with the reason of each, and what was changed later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cli.console.text import format_count, format_number_of, format_threads
from lm.config.run_config import RunConfig
from lm.config.settings import LENGTHS

_IN_WORDS = {"budget": "time and corpus", "from_run": "base run"}
_WEAK = ("default", "from_run")
"""Reasons that say less than others of the same row."""

Row = tuple[str, str, str]
"""A setting, its value, and the reason."""


def print_plan(rows: Iterable[Row], print_line: Callable[[str], object]) -> None:
    """Print a plan as a table."""
    table = [("plan", "", "chosen by"), *rows]
    names = max(len(name) for name, _, _ in table)
    values = max(len(value) for _, value, by in table if by)
    for name, value, by in table:
        print_line(f"{name:<{names}}  {value:<{values}}  {by}".rstrip())


def plan_rows(config: RunConfig, parameters: int, reasons: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each decision that the user may want to change.

    Args:
        parameters: of the model.
        reasons: of each setting, by names such as "training.steps".
    """
    model, training, plan = config.model, config.training, config.plan
    assert plan is not None

    def because(*names: str) -> str:
        known = [reasons[name] for name in names if name in reasons]
        by = min(known, key=lambda reason: (reason == "default", reason in _WEAK), default="")
        return _IN_WORDS.get(by, by)

    if training.budget is not None:
        yield "time", training.budget, because("training.budget")
    layers = format_number_of(model.n_layers, "layer")
    if model.is_encoder_decoder:
        layers = f"{model.n_encoder_layers} + {layers}"
    chosen = because("preset") if reasons.get("preset") == "budget" else f"preset {config.preset}"
    by_parent = reasons.get("model.d_model") == "from_run"
    shape = f"{layers}, {model.d_model} wide, {format_count(parameters)} parameters"
    yield "model", shape, _IN_WORDS["from_run"] if by_parent else chosen
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
    regularisation = {
        "dropout": (model.dropout, "model.dropout"),
        "weight decay": (training.weight_decay, "training.weight_decay"),
        "R-Drop": (training.r_drop, "training.r_drop"),
        "BPE dropout": (config.parallel.bpe_dropout, "parallel.bpe_dropout"),
    }
    for name, (value, setting) in regularisation.items():
        if value:
            yield name, f"{value:g}", because(setting)
    interval = f"every {training.evaluate_every:,} steps" if training.evaluate_every else "at the end"
    yield "evaluation", interval, because("training.evaluate_every")
    yield "hardware", f"{plan.dtype} on {plan.device}, {format_threads(plan.threads)}", because("hardware.dtype")
    yield "seed", str(training.seed), because("training.seed")
    yield "corpus", plan.data, ""


def changed_rows(decisions: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield what was changed after the start, from the entries of `decisions.jsonl`."""
    for entry in decisions:
        if entry["step"]:
            values = [
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in entry["chosen"].items()
            ]
            yield f"step {entry['step']:,}", f"{entry['by']}: {', '.join(values)}", ""
