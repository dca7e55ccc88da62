"""A self-contained HTML page of attention maps, written map by map."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator
from html import escape

import numpy as np

from cli.attention.rendering import describe, weight_rows
from cli.console.heat_map import format_name, fraction_colour, is_light
from lm.config.evaluation import AttentionConfig
from lm.evaluation.attention_maps import AttentionMap, Weights
from lm.evaluation.text_attention import TextAttention

_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #1d1d1b; --faint: #6d6d68; --rule: #dddcd4; }
@media (prefers-color-scheme: dark) {
  :root { --page: #161617; --ink: #e4e3de; --faint: #98978f; --rule: #35353a; } }
body { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 6rem; background: var(--page); color: var(--ink);
  font: .9375rem/1.5 ui-sans-serif, system-ui, sans-serif; }
section { border-top: 1px solid var(--rule); padding: 1rem 0 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; margin: 0 0 1rem; }
dt, figcaption, .what { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.what { margin: 0 0 .5rem; font-size: .8125rem; }
.map { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 1px; font-variant-numeric: tabular-nums; }
th { font-weight: normal; white-space: nowrap; }
thead th { vertical-align: bottom; padding: 0 0 .25rem; }
thead th span { writing-mode: vertical-rl; text-orientation: sideways; transform: rotate(180deg); line-height: 1.75rem;
  max-height: 12rem; overflow: hidden; text-overflow: ellipsis; }
tbody th { text-align: right; padding-right: .5rem; max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
td { min-width: 1.75rem; height: 1.5rem; padding: 0; text-align: center; font-size: .6875rem; color: #fff; }
td.l { color: #000; }
td:hover { outline: 2px solid var(--ink); }
.all { display: grid; gap: .5rem; margin-top: 1rem; overflow-x: auto; }
figure { margin: 0; font-size: .6875rem; }
figure img { display: block; width: 100%; min-width: 3.5rem; image-rendering: pixelated; }
"""


def render_page(maps: Iterable[TextAttention], config: AttentionConfig) -> Iterator[str]:
    """Yield the parts of the page; of each map one layer and head is drawn large, with numbers, and all small below."""
    yield (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Attention</title>\n<style>{_STYLE}{_colours()}</style></head>\n<body>\n<h1>Attention</h1>\n"
    )
    for attention in maps:
        yield from _section(attention, config)
    yield "</body></html>\n"


def _colours() -> str:
    shades = (f"#{''.join(f'{part:02x}' for part in fraction_colour(percent / 100))}" for percent in range(101))
    return "".join(f".w{percent} {{ background: {shade}; }}\n" for percent, shade in enumerate(shades))


def _section(shown: TextAttention, config: AttentionConfig) -> Iterator[str]:
    names = ("source", "target") if shown.map.is_of_translation else ("text",)
    facts = list(zip(names, shown.texts, strict=True))
    if shown.map.is_of_translation:
        facts.append(("alignments", shown.map.pharaoh(layer=config.layer, head=config.head)))
    yield "<section>\n<dl>"
    for name, text in facts:
        yield f'<dt>{name}</dt><dd dir="auto">{escape(format_name(text).replace("␣", " "))}</dd>\n'
    yield f'</dl>\n<p class="what">{escape(describe(shown.map, config))}; the lighter, the more</p>\n'
    yield from _table(shown.map, config)
    yield from _all(shown.map)
    yield "</section>\n"


def _table(attention_map: AttentionMap, config: AttentionConfig) -> Iterator[str]:
    """Render the chosen map with its numbers, and tooltips with the words."""
    columns = [escape(format_name(name), quote=True) for name in attention_map.keys.labels]
    heads = "".join(f"<th><span>{name}</span></th>" for name in columns)
    yield f'<div class="map"><table><thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n'
    for name, row in zip(attention_map.queries.labels, weight_rows(attention_map, config), strict=True):
        head = escape(format_name(name), quote=True)
        cells = "".join(_cell(weight, head, column) for weight, column in zip(row, columns, strict=True))
        yield f"<tr><th>{head}</th>{cells}</tr>\n"
    yield "</tbody></table></div>\n"


def _cell(weight: float | None, row: str, column: str) -> str:
    if weight is None:
        return "<td></td>"
    percent = round(100 * weight)
    light = " l" if is_light(fraction_colour(percent / 100)) else ""
    return f'<td class="w{percent}{light}" title="{row} → {column}: {weight:.1%}">{percent or "·"}</td>'


def _all(attention_map: AttentionMap) -> Iterator[str]:
    """Render every head of every layer, a row for each layer."""
    layers, heads = attention_map.weights.shape[:2]
    if layers * heads == 1:
        return
    yield '<p class="what">every head (column) of every layer (row)</p>\n'
    yield f'<div class="all" style="grid-template-columns: repeat({heads}, minmax(3.5rem, 10rem))">\n'
    for layer in range(layers):
        for head in range(heads):
            png = _png(attention_map.weights[layer, head], is_causal=attention_map.is_causal)
            picture = base64.b64encode(png).decode()
            name = f"layer {layer + 1}, head {head + 1}"
            yield (
                f'<figure><img alt="{name}" src="data:image/png;base64,{picture}">'
                f"<figcaption>{layer + 1}.{head + 1}</figcaption></figure>\n"
            )
    yield "</div>\n"


def _png(weights: Weights, *, is_causal: bool) -> bytes:
    """Return a PNG with a pixel per weight; future positions are transparent.

    Source: PNG (W3C 2003), colour type 6, no filter.
    """
    height, width = weights.shape
    visible = (np.tri(height, width) if is_causal else np.ones((height, width))) > 0
    pixels = [[(*fraction_colour(weight), 255 * is_visible) for weight, is_visible in zip(*row, strict=True)]
            for row in zip(weights.tolist(), visible.tolist(), strict=True)]  # fmt: skip
    rows = (bytes(part for pixel in row for part in pixel) for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + b"".join((
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows), 9)),
        _chunk(b"IEND", b""),
    ))  # fmt: skip


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
