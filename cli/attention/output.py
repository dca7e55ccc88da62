"""Attention maps as text and JSON, HTML pages, pictures and word alignments."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from cli.console.heat_map import HeatMap, draw_heat_map, format_name, fraction_colour, is_light
from cli.console.plots import load_pyplot, save_figure
from cli.console.text import format_json_line, print_note
from lm.config.evaluation import AttentionConfig
from lm.errors import UsageError
from lm.evaluation.attention import AttentionMap, Axis, Weights
from lm.files import atomic_write_text, check_writable

PICTURES = (".png", ".svg")
SUFFIXES = (".html", *PICTURES, ".jsonl", ".pharaoh")

_TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)
_WIDE_FONTS = ("Noto Sans CJK", "Source Han Sans", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Hiragino",
               "Microsoft YaHei", "PingFang SC", "WenQuanYi")  # fmt: skip
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
figure table { border-spacing: 0; width: 100%; }
figure td { min-width: .25rem; height: .25rem; }
"""
_WHOSE = {
    "self": "self-attention",
    "cross": "cross-attention of the target (rows) to the source",
    "joint": "self-attention of the target (rows) to the source and itself",
}


def describe(shown: AttentionMap, config: AttentionConfig) -> str:
    """Return a caption: whose attention, layer, head."""
    layers, heads = shown.weights.shape[:2]
    layer = f"layer {config.layer}" if config.layer else f"mean of {layers} layers"
    head = f"head {config.head}" if config.head else f"mean of {heads} heads"
    return f"{_WHOSE[shown.kind]}, {layer}, {head}; % of each row"


def _facts(shown: AttentionMap, config: AttentionConfig) -> Iterator[tuple[str, str]]:
    """Yield the texts with their names, and the alignments of a translation."""
    names = ("source", "target") if shown.is_of_translation else ("text",)
    for name, text in zip(names, shown.texts, strict=True):
        yield name, format_name(text).replace("␣", " ")
    if shown.is_of_translation:
        yield "alignments", shown.pharaoh(layer=config.layer, head=config.head)


def _rows(shown: AttentionMap, weights: Weights) -> list[list[float | None]]:
    """Return weights of queries to keys; None for future positions."""
    return [
        [None if shown.is_causal and column > row else weight for column, weight in enumerate(line)]
        for row, line in enumerate(weights.tolist())
    ]


def render_lines(shown: AttentionMap, config: AttentionConfig, *, width: int | None, colours: int) -> Iterator[str]:
    """Render a map as text: the texts, the alignments of a translation, and the heat map."""
    for name, text in _facts(shown, config):
        yield f"{name}  {text}".rstrip()
    rows = _rows(shown, shown.mean(layer=config.layer, head=config.head))
    heat_map = HeatMap(describe(shown, config), shown.queries.labels, shown.keys.labels, rows)
    yield from draw_heat_map(heat_map, width=width, colours=colours)


def to_dict(shown: AttentionMap, config: AttentionConfig) -> dict[str, Any]:
    """Convert to plain values: all layers and heads, the mean of the chosen ones, and alignments."""
    alignments = shown.pharaoh(layer=config.layer, head=config.head) if shown.is_of_translation else None
    return {
        "kind": shown.kind,
        "texts": list(shown.texts),
        "unit": config.unit,
        "layer": config.layer,
        "head": config.head,
        "queries": _axis(shown.queries),
        "keys": _axis(shown.keys),
        "mean": _rounded(shown.mean(layer=config.layer, head=config.head)),
        "weights": _rounded(shown.weights),
        **({} if alignments is None else {"alignments": alignments}),
    }


def _axis(axis: Axis) -> dict[str, Sequence[Any]]:
    return {"labels": axis.labels, "words": axis.words}


def _rounded(weights: Weights) -> Any:
    """Round to six digits, the precision of float32."""
    return weights.astype(float).round(6).tolist()


def check_output_path(path: Path) -> None:
    """Raise UsageError unless a file with this suffix can be written; to be called before long work."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: unknown suffix; it is one of {', '.join(SUFFIXES)}")
    check_writable(path)
    if path.suffix in PICTURES:
        load_pyplot()


def write_maps(path: Path, maps: Iterable[AttentionMap], config: AttentionConfig) -> None:
    """Write maps to a file as they come, atomically, and name the written files on stderr.

    A picture holds one map: the files of further ones are named FILE-2.png and so on.
    """
    if path.suffix in PICTURES:
        for number, shown in enumerate(maps, 1):
            picture = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
            _save_picture(picture, shown, config)
            print_note(f"wrote {picture}")
        return
    with atomic_write_text(path) as file:
        file.writelines(_parts(path.suffix, maps, config))
    print_note(f"wrote {path}")


def _parts(suffix: str, maps: Iterable[AttentionMap], config: AttentionConfig) -> Iterator[str]:
    """Yield the parts of a file."""
    if suffix == ".html":
        shades = (f"#{''.join(f'{part:02x}' for part in fraction_colour(percent / 100))}" for percent in range(101))
        colours = "".join(f".w{percent} {{ background: {shade}; }}\n" for percent, shade in enumerate(shades))
        yield (
            '<!DOCTYPE html>\n<html><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>Attention</title>\n<style>{_STYLE}{colours}</style></head>\n<body>\n<h1>Attention</h1>\n"
        )
    for shown in maps:
        if suffix == ".html":
            yield from _render_section(shown, config)
        elif suffix == ".jsonl":
            yield format_json_line(to_dict(shown, config)) + "\n"
        elif not shown.is_of_translation:
            raise UsageError("only a translation has alignments (.pharaoh)")
        else:
            yield shown.pharaoh(layer=config.layer, head=config.head) + "\n"
    yield "</body></html>\n" if suffix == ".html" else ""


def _render_section(shown: AttentionMap, config: AttentionConfig) -> Iterator[str]:
    """Render one layer and head, or their mean, with numbers and words, and below every head small."""
    facts = "".join(f'<dt>{name}</dt><dd dir="auto">{escape(text)}</dd>\n' for name, text in _facts(shown, config))
    rows, columns = ([escape(format_name(name)) for name in axis.labels] for axis in (shown.queries, shown.keys))
    heads = "".join(f"<th><span>{name}</span></th>" for name in columns)
    yield f'<section>\n<dl>{facts}</dl>\n<p class="what">{escape(describe(shown, config))}; the lighter, the more</p>\n'
    yield f'<div class="map"><table><thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n'
    weights = shown.mean(layer=config.layer, head=config.head)
    for name, cells in zip(rows, _cells(shown, weights, has_numbers=True), strict=True):
        yield f"<tr><th>{name}</th>{cells}</tr>\n"
    n_layers, n_heads = shown.weights.shape[:2]
    yield '</tbody></table></div>\n<p class="what">every head (column) of every layer (row)</p>\n'
    yield f'<div class="all" style="grid-template-columns: repeat({n_heads}, minmax(3.5rem, 10rem))">\n'
    for layer, head in np.ndindex(n_layers, n_heads):
        cells = "".join(f"<tr>{row}</tr>" for row in _cells(shown, shown.weights[layer, head], has_numbers=False))
        yield f"<figure><table>{cells}</table><figcaption>{layer + 1}.{head + 1}</figcaption></figure>\n"
    yield "</div>\n</section>\n"


def _cells(shown: AttentionMap, weights: Weights, *, has_numbers: bool) -> Iterator[str]:
    """Yield the cells of each row."""
    for row in _rows(shown, weights):
        cells = []
        for weight in row:
            percent = round(100 * (weight or 0))
            light = " l" if is_light(fraction_colour(percent / 100)) else ""
            number = (percent or "·") if has_numbers else ""
            cells.append("<td></td>" if weight is None else f'<td class="w{percent}{light}">{number}</td>')
        yield "".join(cells)


def _save_picture(path: Path, shown: AttentionMap, config: AttentionConfig) -> None:
    """Draw the chosen layer and head, or their mean, as a .png or .svg."""
    plot = load_pyplot()
    from matplotlib import font_manager
    from matplotlib.colors import PowerNorm

    wide = sorted({font.name for font in font_manager.fontManager.ttflist if font.name.startswith(_WIDE_FONTS)})
    columns, rows = (
        [format_name(name).replace("$", r"\$") for name in axis.labels] for axis in (shown.keys, shown.queries)
    )
    weights = np.array(_rows(shown, shown.mean(layer=config.layer, head=config.head)), dtype=float)
    with plot.rc_context({"font.family": ["DejaVu Sans", *wide]}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that no font has
        size = (2.2 + 0.32 * len(columns), 2.2 + 0.28 * len(rows))
        figure, axes = plot.subplots(figsize=size, layout="constrained")
        image = axes.imshow(weights, cmap="viridis", norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="auto")
        axes.set_title(describe(shown, config), fontsize=8)
        axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=8)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.xaxis.tick_top()
        bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=_TICKS)
        bar.ax.set_yticklabels([f"{tick:.0%}" for tick in _TICKS], fontsize=8)
        save_figure(plot, figure, path)
