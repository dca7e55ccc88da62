"""`lm perplexity RUN … --compare-dtypes`: what a run costs in each type of numbers that this machine can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cli.console.escapes import json_line
from cli.console.messages import paragraph
from cli.console.numbers import figure, size
from cli.console.tables import table
from cli.flags.options import Given
from cli.perplexity import report
from cli.perplexity.scorer import LoadedScorer, on
from cli.perplexity.text import scoring_progress
from lm.config.hardware import HardwareConfig
from lm.evaluation.perplexity import FileScore
from lm.evaluation.type_costs import TypeCost, type_costs
from lm.hardware import found_device, usable_types
from lm.text.files import TextFile

COLUMNS = ("type", "bits/byte", "difference", "weights", "tokens/s")


def settings(given: Given) -> Given:
    """The settings in float32, which other types are compared with."""
    return on(given, dtype="float32")


def measure(scorer: LoadedScorer, files: Sequence[TextFile], *, as_json: bool) -> None:
    """Score files by a run, which is loaded in float32, in each type, and print what that costs."""
    first, *others = usable_types(found_device(HardwareConfig(**scorer.given["hardware"])))
    loaded = {first: scorer, **{dtype: scorer.in_type(dtype) for dtype in others}}
    costs: list[TypeCost] = []
    with scoring_progress(files) as watch:
        for event in type_costs({dtype: each.text for dtype, each in loaded.items()}, files, costs=costs):
            watch(event)
    report.refuse_nothing([FileScore(", ".join(file.name for file in files), costs[0].tally)])
    if as_json:
        print(json_line({"types": [_figures(cost, costs[0]) for cost in costs], **scorer.conditions}))
        return
    table(COLUMNS, [_row(cost, costs[0]) for cost in costs])
    paragraph(report.described(scorer.conditions, costs[0].tally))


def _row(cost: TypeCost, first: TypeCost) -> list[str]:
    beyond = cost.beyond(first) if cost is not first else None
    difference = "–" if beyond is None else f"{beyond:+.3%}"
    bits = figure(cost.tally.bits_per_byte, 4)
    return [cost.dtype, bits, difference, size(cost.weight_bytes), f"{cost.tokens_per_second:,.0f}"]


def _figures(cost: TypeCost, first: TypeCost) -> dict[str, Any]:
    beyond = cost.beyond(first)
    return {
        "dtype": cost.dtype,
        "bits_per_byte": cost.tally.bits_per_byte,
        "difference_percent": None if beyond is None else 100 * beyond,
        "weight_bytes": cost.weight_bytes,
        "tokens_per_second": cost.tokens_per_second,
        "tokens": cost.tally.tokens,
        "bytes": cost.tally.bytes,
        "nats": cost.tally.nats,
    }
