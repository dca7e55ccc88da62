"""`lm attention`: attention in a text, or of a translation to its source, as text, JSON, a page or a picture."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import AsJson, ToLanguage, read_text_argument
from cli.console import format_json_line, format_label, print_note
from cli.console.figures import format_name, load_pyplot, print_heat_map, save_figure
from cli.loading import RunPath
from cli.options import Options, with_settings
from lm.config.inference import AttentionConfig
from lm.config.run_config import HardwareConfig
from lm.errors import InputError, UsageError
from lm.files import atomic_write_text, check_writable

if TYPE_CHECKING:
    from lm.evaluation.attention import AttentionMap, Unit

_Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="Text; - or none: stdin.")]
_Target = Annotated[
    str | None, typer.Option("--target", metavar="TEXT", help="A translation, to show its cross-attention.")
]
_Heads = Annotated[
    str | None,
    typer.Option("--dependency-heads", metavar="HEADS", help='Dependency tree: head of each word, as "2 0 2".'),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="File to write: .html, .png, .svg, .jsonl or .pharaoh."),
]
Values = Mapping[str, Any]

_PICTURES = (".png", ".svg")
_SUFFIXES = (".html", *_PICTURES, ".jsonl", ".pharaoh")
_PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention</title>
<style>
:root { color-scheme: light dark; }
body { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 6rem;
  font: .9375rem/1.5 ui-sans-serif, system-ui, sans-serif; }
section { overflow-x: auto; padding: 1rem 0 2rem; }
table { border-spacing: 1px; font-variant-numeric: tabular-nums; }
th { font-weight: normal; white-space: nowrap; text-align: right; padding-right: .5rem; }
thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; line-height: 1.75rem; }
td { min-width: 1.75rem; height: 1.5rem; padding: 0; text-align: center; font-size: .6875rem;
  background: color-mix(in srgb, #e8803a calc(var(--w) * 1%), transparent); }
td:empty { background: none; }
.all { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: 1rem; }
.all table { border-spacing: 0; width: 100%; }
.all td { min-width: .25rem; height: .25rem; font-size: 0; }
figure { margin: 0; flex: 1 1 5rem; max-width: 10rem; font-size: .6875rem; }
</style></head>
<body>
<h1>Attention</h1>
"""


@with_settings(
    {"attention": AttentionConfig, "hardware": HardwareConfig},
    "layer head unit device dtype threads",
)
def attention(
    run: RunPath,
    text: _Text = None,
    *,
    target: _Target = None,
    to: ToLanguage = None,
    heads: _Heads = None,
    out: _Out = None,
    as_json: AsJson = False,
    options: Options,
) -> None:
    """Show attention weights as a heat map.

    Rows are queries, columns are keys. As a key a word has the sum of its tokens' weights, as a query their mean, so
    each row sums to 100%. In a GPT a word attends to itself and earlier words, the start of the text (<s>) included, in
    a masked model to the whole text. In an encoder-decoder, --target shows the cross-attention of a translation: of
    each of its words while it is predicted, and of its end (</s>); without it, the encoder's self-attention is shown.
    In a run with --set model.decoder_only=true the words of a translation attend to the text and to earlier words.

    Attention shows where information flows, not why a model decides as it does.

    Examples:
      lm attention runs/novel "It was the best of times"
      lm attention runs/novel "It was the best of times" --layer 2 --head 1 --unit tokens
      lm attention runs/novel "It was the best of times" -o attention.html
      lm attention runs/en-de "A dog runs." --target "Ein Hund rennt." -o alignments.pharaoh
    """
    config = options.build(AttentionConfig)
    from lm.checkpoint import load_model
    from lm.evaluation.attention import compute_attention
    from lm.hardware import select_hardware
    from lm.text.parallel_text import parse_heads

    if out is not None:
        check_output_path(out)
    read = read_text_argument(text) or ""
    tree = None if heads is None else parse_heads(heads, read, where="--dependency-heads")
    loaded = load_model(run, select_hardware(options.build(HardwareConfig)))
    shown = compute_attention(loaded, read, target, unit=config.unit, to=to, dependency_heads=tree)
    if out is not None:
        write_maps(out, [shown], config)
        return
    values = _to_dict(shown, config)
    if as_json:
        print(format_json_line(values))
        return
    print(*_describe(values), sep="\n", flush=True)
    print_heat_map(values["queries"]["labels"], values["keys"]["labels"], values["mean"])


def _to_dict(shown: AttentionMap, config: AttentionConfig) -> Values:
    """Convert to plain values: all layers and heads, the mean of the chosen ones, and alignments of a translation."""

    def axis(units: Sequence[Unit]) -> Values:
        return {"labels": [unit.label for unit in units], "words": [unit.number for unit in units]}

    chosen = {"layer": config.layer, "head": config.head}
    mean, weights = (each.astype(float).round(6).tolist() for each in (shown.mean(**chosen), shown.weights))  # float32
    return {
        "kind": shown.kind,
        "texts": shown.texts,
        **chosen,
        "queries": axis(shown.queries),
        "keys": axis(shown.keys),
        "mean": mean,
        "weights": weights,
        **({"alignments": shown.pharaoh(**chosen)} if len(shown.texts) > 1 else {}),
    }


def _describe(values: Values) -> list[str]:
    """Return the texts, the alignments of a translation, and a caption: whose attention, layer, head."""
    layer, head = (
        f"{name} {values[name]}" if values[name] else f"mean of {number} {name}s"
        for name, number in (("layer", len(values["weights"])), ("head", len(values["weights"][0])))
    )
    caption = f"{values['kind']} attention of rows to columns, {layer}, {head}; % of each row"
    return [*map(format_label, values["texts"]), *([values["alignments"]] if "alignments" in values else []), caption]


def check_output_path(path: Path) -> None:
    """Raise UsageError unless a file with this suffix can be written; to be called before long work."""
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{path}: unknown suffix; it is one of {', '.join(_SUFFIXES)}")
    check_writable(path)
    if path.suffix in _PICTURES:
        load_pyplot()


def write_maps(path: Path, maps: Iterable[AttentionMap], config: AttentionConfig) -> None:
    """Write maps to a file, atomically, and name it on stderr."""
    found = (_to_dict(shown, config) for shown in maps)
    if path.suffix in _PICTURES:
        if not (drawn := [*found]):
            raise InputError(f"{path}: there is nothing to draw")
        _save_picture(path, drawn)
    else:
        with atomic_write_text(path) as file:
            file.write(_PAGE if path.suffix == ".html" else "")
            for values in found:
                if path.suffix == ".html":
                    file.writelines(_render_section(values))
                else:
                    line = format_json_line(values) if path.suffix == ".jsonl" else values.get("alignments", "")
                    file.write(line + "\n")
    print_note(f"wrote {path}")


def _render_section(values: Values) -> Iterator[str]:
    """Render one layer and head, or their mean, with numbers and words, and below every head small."""
    yield "<section>\n" + "".join(f'<p dir="auto">{escape(line)}</p>\n' for line in _describe(values))
    queries, keys = (
        [f"<th>{escape(format_name(name))}</th>" for name in values[axis]["labels"]] for axis in ("queries", "keys")
    )
    yield f"<table><thead><tr><td></td>{''.join(keys)}</tr></thead>\n"
    for name, cells in zip(queries, _cells(values["mean"]), strict=True):
        yield f"<tr>{name}{cells}</tr>\n"
    yield '</table>\n<div class="all">\n'
    for layer, heads in enumerate(values["weights"], 1):
        for head, weights in enumerate(heads, 1):
            rows = "".join(f"<tr>{cells}</tr>" for cells in _cells(weights))
            yield f"<figure><table>{rows}</table>layer {layer}, head {head}</figure>\n"
    yield "</div>\n</section>\n"


def _cells(weights: Sequence[Sequence[float]]) -> Iterator[str]:
    """Yield the cells of each row."""
    for row in weights:
        yield "".join(f'<td style="--w:{100 * weight**0.5:.0f}">{100 * weight:.0f}</td>' for weight in row)


def _save_picture(path: Path, maps: Sequence[Values]) -> None:
    """Draw the chosen layer and head, or their mean, of each map as a .png or .svg."""
    import numpy as np

    plot = load_pyplot()
    size = 3 + 0.3 * max(len(values["keys"]["labels"]) for values in maps)
    figure, axes = plot.subplots(len(maps), figsize=(size, size * len(maps)), layout="constrained", squeeze=False)
    for (drawing,), values in zip(axes, maps, strict=True):
        drawing.imshow(np.sqrt(values["mean"]), vmin=0, vmax=1)
        drawing.set_title(_describe(values)[-1], wrap=True)
        queries, keys = ([name.replace("$", r"\$") for name in values[axis]["labels"]] for axis in ("queries", "keys"))
        drawing.set_xticks(range(len(keys)), keys, rotation=90)
        drawing.set_yticks(range(len(queries)), queries)
    with warnings.catch_warnings(action="ignore"):  # of characters that no font has
        save_figure(plot, figure, path)
