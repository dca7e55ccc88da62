"""Pictures of attention maps by matplotlib: the chosen map large, every layer and head small beside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from rich.cells import cell_len

from cli.attention.rendering import describe
from cli.console.heat_map import format_name
from cli.console.plots import load_pyplot, save_figure
from cli.console.text import print_note
from lm.config.evaluation import AttentionConfig
from lm.evaluation.attention_maps import AttentionMap, Weights
from lm.evaluation.text_attention import TextAttention

_MAX_LABEL_WIDTH = 24  # in terminal columns
_TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)
_WIDE_FONTS = ("Noto Sans CJK", "Source Han Sans", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Hiragino",
               "Microsoft YaHei", "PingFang SC", "WenQuanYi")  # fmt: skip


def save_plot(path: Path, attention: TextAttention, config: AttentionConfig) -> Path:
    """Write a map as a .png or .svg."""
    plot = load_pyplot()
    with plot.rc_context({"font.family": _fonts()}), warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        save_figure(plot, _draw(plot, attention.map, config), path)
    if any("missing from font" in str(warning.message) for warning in raised):
        print_note(
            f"{path}: no font of this machine has all the characters; they are shown as boxes (.html shows them)"
        )
    return path


def _fonts() -> list[str]:
    """Return matplotlib's own font, then those on this machine with East Asian scripts."""
    from matplotlib import font_manager

    installed = sorted({font.name for font in font_manager.fontManager.ttflist})
    return ["DejaVu Sans", *(name for name in installed if name.startswith(_WIDE_FONTS))]


def _draw(plot: Any, attention_map: AttentionMap, config: AttentionConfig) -> Any:
    rows, columns = len(attention_map.queries.labels), len(attention_map.keys.labels)
    width, height = 2.2 + 0.32 * columns, 2.2 + 0.28 * rows
    layers, heads = attention_map.weights.shape[:2]
    with_all = not (config.layer and config.head) and layers * heads > 1
    side = max(3.0, 0.9 * heads) if with_all else 0.0
    figure = plot.figure(figsize=(width + side, max(height, 0.9 * layers + 1 if with_all else 0)), layout="constrained")
    parts = figure.subfigures(1, 2, width_ratios=[width, side]) if with_all else [figure]
    _large(parts[0].subplots(), attention_map, config)
    parts[0].suptitle(fill(describe(attention_map, config), int(14 * width)), fontsize=8)
    if with_all:
        grid = parts[1].subplots(layers, heads, squeeze=False)
        for layer in range(layers):
            for head in range(heads):
                axes = grid[layer][head]
                _image(axes, _blank_future(attention_map, attention_map.weights[layer, head]))
                axes.set_title(f"{layer + 1}.{head + 1}", fontsize=6, pad=2)
                axes.set_xticks([])
                axes.set_yticks([])
        parts[1].suptitle("layer.head", fontsize=8)
    return figure


def _large(axes: Any, attention_map: AttentionMap, config: AttentionConfig) -> None:
    image = _image(axes, _blank_future(attention_map, attention_map.mean(layer=config.layer, head=config.head)))
    columns, rows = (list(_labels(axis.labels)) for axis in (attention_map.keys, attention_map.queries))
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, ticks=_TICKS)
    bar.ax.set_yticklabels([f"{tick:.0%}" for tick in _TICKS], fontsize=8)


def _blank_future(attention_map: AttentionMap, weights: Weights) -> Weights:
    if not attention_map.is_causal:
        return weights
    return np.where(np.tri(*weights.shape) > 0, weights, np.float32(np.nan))


def _image(axes: Any, values: Weights) -> Any:
    from matplotlib.colors import PowerNorm

    return axes.imshow(values, cmap="viridis", norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="auto")


def _labels(names: Iterable[str]) -> Iterable[str]:
    """Truncate labels, and escape matplotlib's math markup."""
    for name in names:
        shown = format_name(name).replace("$", r"\$")
        yield shown if cell_len(shown) <= _MAX_LABEL_WIDTH else shown[: _MAX_LABEL_WIDTH - 1] + "…"
