"""A self-contained HTML page with a text coloured by surprisal, written as the text is scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import isnan

from cli.console.text import LINE_END, escape_controls_and_line_ends, format_value
from cli.perplexity.surprisal import LEVELS, find_level, format_ranges, nats_to_bits
from lm.evaluation.perplexity import FileScore, PerplexityResult
from lm.evaluation.surprisal import TextSpan

_LIGHT = ("#fff8d6", "#ffedb0", "#fed976", "#feb24c", "#fd8d3c", "#d7351f", "#8f0032")
_DARK = ("#2b2718", "#40361a", "#5e4717", "#86540f", "#a34a10", "#e0523a", "#ff8f8a")
_BLOCK = 4096  # characters; the browser lays out only the blocks in view

_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #1d1d1b; --faint: #6d6d68; --rule: #dddcd4; --strong: #fff;
  LIGHT }
@media (prefers-color-scheme: dark) {
  :root { --page: #161617; --ink: #e4e3de; --faint: #98978f; --rule: #35353a; --strong: #161617;
    DARK } }
* { box-sizing: border-box; }
body { display: flex; flex-direction: column; max-width: 52rem; margin: 0 auto; padding: 2rem 1.25rem 6rem;
  background: var(--page); color: var(--ink); font: 1.0625rem/1.75 ui-serif, Georgia, serif; }
header, table, .legend { font-family: ui-sans-serif, system-ui, sans-serif; font-size: .875rem; line-height: 1.5; }
header { order: -3; }
h1 { margin: 0; font-size: 1.375rem; }
header p { margin: .25rem 0 1rem; color: var(--faint); }
table { order: -2; display: block; overflow-x: auto; border-collapse: collapse; margin-bottom: 1rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; font-weight: normal;
  border-bottom: 1px solid var(--rule); }
th { color: var(--faint); }
td { white-space: nowrap; }
:is(th, td):first-child { text-align: left; }
.legend { order: -1; position: sticky; top: 0; z-index: 1; padding: .5rem 0; background: var(--page);
  border-bottom: 1px solid var(--rule); }
.legend i { padding: .125rem .5rem; }
h2 { margin: 2rem 0 .5rem; font: 600 .9375rem ui-sans-serif, system-ui, sans-serif; color: var(--faint); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; content-visibility: auto; contain-intrinsic-size: auto 60rem; }
i { position: relative; font-style: normal; border-radius: .125rem; padding: .125rem 0; }
i u { color: var(--faint); text-decoration: none; opacity: .6; user-select: none; }
i:is(.l6, .l7) { color: var(--strong); }
i[data-t]:hover { outline: 2px solid var(--ink); }
i[data-t]:hover::after { content: attr(data-t); position: fixed; left: 1rem; bottom: 1rem;
  max-width: calc(100vw - 2rem); padding: .375rem .75rem; border-radius: .375rem;
  background: var(--ink); color: var(--page); white-space: pre;
  font: .875rem/1.4 ui-sans-serif, system-ui, sans-serif; }
"""


def render_opening(title: str, conditions: str) -> str:
    """Return the page up to the text.

    Args:
        title: what was scored.
        conditions: how it was scored, in a sentence.
    """
    style = _STYLE.replace("LIGHT", _palette(_LIGHT)).replace("DARK", _palette(_DARK))
    rules = "".join(f".l{n} {{ background: var(--l{n}); }}\n" for n in range(1, len(LEVELS)))
    swatches = " ".join(f'<i class="l{n}">{escape(name)}</i>' for n, name in enumerate(format_ranges()))
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}{rules}</style></head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1><p>{escape(conditions)}</p></header>\n"
        f'<div class="legend">bits per token: {swatches}</div>\n'
    )


def _palette(colours: Sequence[str]) -> str:
    return " ".join(f"--l{n}: {colour};" for n, colour in enumerate(colours, 1))


def render_body(spans: Iterable[TextSpan], names: Sequence[str]) -> Iterator[str]:
    """Yield the text in blocks that end with lines, if the text has lines."""
    document, length = (-1, -1), 0
    for span in spans:
        if (span.file, span.document) != document:
            yield ("</div>\n" if length else "") + _heading(span, document[0], names)
            length = 0
        document = span.file, span.document
        yield ('<div class="text" dir="auto">' if not length else "") + _render_span(span)
        length += len(span.text)
        if length > _BLOCK and span.text.endswith("\n"):
            yield "</div>\n"
            length = 0
    if length:
        yield "</div>\n"


def _heading(span: TextSpan, file: int, names: Sequence[str]) -> str:
    if span.file != file:
        return f"<h2>{escape(escape_controls_and_line_ends(names[span.file]))}</h2>\n"
    return f"<h2>document {span.document + 1}</h2>\n"


def _render_span(span: TextSpan) -> str:
    """Return a span in its colour, with its surprisal as a tooltip."""
    figures = "not scored" if isnan(span.nats) else f"{nats_to_bits(span.nats):.2f} bits · {span.nats:.2f} nats"
    parts = f" · {span.tokens} tokens" if span.tokens > 1 else ""
    shown = escape_controls_and_line_ends(span.text)
    about = escape(f"{shown.replace(chr(10), LINE_END)!r} · {figures}{parts}")
    return f'<i class="l{find_level(span.nats)}" data-t="{about}">{_render_lines(shown)}</i>'


def _render_lines(shown: str) -> str:
    return escape(shown).replace("\n", f"<u>{LINE_END}</u>\n")


def render_closing(scores: Sequence[FileScore], total: PerplexityResult) -> str:
    """Return the table of results, which the style places above the text, and the end of the page."""
    rows = [(score.name, score.result) for score in scores]
    rows += [("total", total)] if len(rows) > 1 else []
    heads = "".join(f"<th>{name}</th>" for name in ("file", "tokens", "bytes", "perplexity", "bits per byte"))
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(*row))}</tr>\n" for row in rows)
    return f"<table><tr>{heads}</tr>\n{lines}</table>\n</body></html>\n"


def _cells(name: str, result: PerplexityResult) -> list[str]:
    figures = format_value(result.perplexity, 2), format_value(result.bits_per_byte, 4)
    return [escape_controls_and_line_ends(name), f"{result.tokens:,}", f"{result.bytes:,}", *figures]
