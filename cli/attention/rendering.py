"""Renders an attention map: the chosen layer and head as a text heat map, or all weights as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cli.console.heat_map import HeatMap, draw_heat_map, format_name
from lm.config.evaluation import AttentionConfig
from lm.evaluation.attention_maps import AttentionMap, Axis, Weights
from lm.evaluation.text_attention import TextAttention

_WHOSE = {
    "self": "self-attention",
    "cross": "cross-attention of the target (rows) to the source",
    "joint": "self-attention of the target (rows) to the source and itself",
}


def render_lines(
    attention: TextAttention, config: AttentionConfig, *, width: int | None, colours: int
) -> Iterator[str]:
    """Render a map as text: the texts, the heat map, and the alignments of a translation."""
    queries, keys = attention.map.queries.labels, attention.map.keys.labels
    heat_map = HeatMap(describe(attention.map, config), queries, keys, weight_rows(attention.map, config))
    names = ("source", "target") if attention.map.is_of_translation else ("text",)
    for name, text in zip(names, attention.texts, strict=True):
        yield f"{name}  {format_name(text).replace('␣', ' ')}".rstrip()
    yield from draw_heat_map(heat_map, width=width, colours=colours)
    if attention.map.is_of_translation:
        yield ""
        yield f"alignments (source-target words, from 0): {attention.map.pharaoh(layer=config.layer, head=config.head)}"


def weight_rows(attention_map: AttentionMap, config: AttentionConfig) -> list[list[float | None]]:
    """Return the weights of the chosen layer and head, or means over those not chosen; None for future positions."""
    weights = attention_map.mean(layer=config.layer, head=config.head).tolist()
    return [
        [None if attention_map.is_causal and column > row else weight for column, weight in enumerate(line)]
        for row, line in enumerate(weights)
    ]


def describe(attention_map: AttentionMap, config: AttentionConfig) -> str:
    """A caption: whose attention, layer, head, unit."""
    layers, heads = attention_map.weights.shape[:2]
    layer = f"layer {config.layer}" if config.layer else f"mean of {layers} layers" if layers > 1 else "one layer"
    head = f"head {config.head}" if config.head else f"mean of {heads} heads" if heads > 1 else "one head"
    return f"{_WHOSE[attention_map.kind]}, {layer}, {head}; % of each row"


def to_dict(attention: TextAttention, config: AttentionConfig) -> dict[str, Any]:
    """Convert to plain values: all layers and heads, the mean of the chosen ones, and alignments."""
    chosen = attention.map.mean(layer=config.layer, head=config.head)
    report: dict[str, Any] = {
        "kind": attention.map.kind,
        "texts": list(attention.texts),
        "unit": config.unit,
        "layer": config.layer,
        "head": config.head,
        "queries": _axis(attention.map.queries),
        "keys": _axis(attention.map.keys),
        "mean": _rounded(chosen),
        "weights": _rounded(attention.map.weights),
    }
    if attention.map.is_of_translation:
        report["alignments"] = attention.map.pharaoh(layer=config.layer, head=config.head)
    return report


def _axis(axis: Axis) -> dict[str, Sequence[Any]]:
    return {"labels": axis.labels, "words": axis.words}


def _rounded(weights: Weights) -> Any:
    """Round to six digits, the precision of float32."""
    return weights.astype(float).round(6).tolist()
