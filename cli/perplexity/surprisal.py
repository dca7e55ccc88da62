"""Text drawn by surprisal: in colours, with a digit beneath each token, or as a self-contained HTML page."""

from __future__ import annotations

import shutil
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import isnan

from rich.cells import cell_len

from cli.console.colours import BLACK, RESET, WHITE, is_colour_enabled
from cli.console.text import LINE_END, escape_controls_and_line_ends
from lm.evaluation.scoring import Scored
from lm.evaluation.surprisal import TextSpan, merge_into_spans

LEVELS = (
    (0, "2"), (1, ""), (2, f"38;5;{BLACK};48;5;187"), (4, f"38;5;{BLACK};48;5;222"), (6, f"38;5;{BLACK};48;5;215"),
    (8, f"38;5;{BLACK};48;5;209"), (11, f"38;5;{BLACK};48;5;167"), (14, f"38;5;{WHITE};48;5;89"),
)  # fmt: skip
"""Lower bounds in bits, and SGR codes: faint, or text and background from the 256-colour palette, which themes don't
change. The colours grow darker too, so that the colour-blind can tell them apart."""

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


def print_text(scored: Iterable[Scored], names: Sequence[str]) -> None:
    """Print the text coloured by surprisal or, without colours, with the bits of each token beneath it."""
    columns = shutil.get_terminal_size().columns
    draw = _draw_coloured if is_colour_enabled() else _draw_digits
    width = columns if draw is _draw_digits or sys.stdout.isatty() else None  # a pager breaks lines itself
    for part in draw(_with_headings(merge_into_spans(scored), names), width):
        sys.stdout.write(part)
    print()


def _paint(text: str, attributes: str) -> str:
    return f"\x1b[{attributes}m{text}{RESET}" if attributes else text


def _find_level(bits: float) -> int:
    """Return the level index of a surprisal; the first for NaN."""
    return 0 if isnan(bits) else bisect_right(LEVELS, bits, key=lambda level: level[0]) - 1


def _ranges() -> list[str]:
    """Return the range of each level, in bits."""
    limits = [str(limit) for limit, _ in LEVELS]
    return [f"<{limits[1]}", *(f"{a}–{b}" for a, b in pairwise(limits[1:])), f"≥{limits[-1]}"]


def _with_headings(spans: Iterable[TextSpan], names: Sequence[str]) -> Iterator[tuple[str, TextSpan]]:
    """Yield spans with the heading before them: a file name if there are several, a number for later documents."""
    place = (-1, 0)
    for span in spans:
        heading = ""
        if span.file != place[0] and len(names) > 1:
            heading = escape_controls_and_line_ends(names[span.file])
        elif span.file == place[0] and span.document != place[1]:
            heading = f"document {span.document + 1}"
        place = span.file, span.document
        yield heading, span


def _draw_coloured(spans: Iterable[tuple[str, TextSpan]], width: int | None) -> Iterator[str]:
    """Yield the text with each span in the colour of its surprisal, line ends as arrows.

    With a width, rows end between tokens: a terminal that wraps may fill the rest of a row with the background.
    """
    swatches = (_paint(f" {name} ", attributes) for name, (_, attributes) in zip(_ranges(), LEVELS, strict=True))
    yield f"bits per token: {' '.join(swatches)}\n"
    column = 0
    for heading, span in spans:
        if heading:
            yield "\n" * bool(column) + f"\x1b[1m── {heading} ──{RESET}\n"
            column = 0
        for line in escape_controls_and_line_ends(span.text).splitlines(keepends=True):
            shown = line.replace("\n", LINE_END)
            size = cell_len(shown)
            if width is not None and column and column + size > width:
                yield "\n"
                column = 0
            yield _paint(shown, LEVELS[_find_level(span.bits)][1]) + "\n" * line.endswith("\n")
            column = 0 if line.endswith("\n") else column + size
    yield "\n" * bool(column)


def _draw_digits(spans: Iterable[tuple[str, TextSpan]], width: int | None) -> Iterator[str]:
    """Yield the text in rows, with the bits of each token as a digit beneath its first character."""
    yield "bits per token beneath its first character (+ for more than 9, · not scored)\n"
    text = marks = ""
    for heading, span in spans:
        mark = "·" if isnan(span.bits) else str(round(span.bits)) if span.bits < 9.5 else "+"
        if heading:
            yield f"{text}\n{marks}\n── {heading} ──\n" if text else f"── {heading} ──\n"
            text = marks = ""
        for line in escape_controls_and_line_ends(span.text).splitlines(keepends=True):
            shown = line.replace("\n", LINE_END)
            if text and width and cell_len(text + shown) > width:
                yield f"{text}\n{marks}\n"
                text = marks = ""
            text, marks, mark = text + shown, marks + mark.ljust(cell_len(shown))[: cell_len(shown)], ""
            if line.endswith("\n"):
                yield f"{text}\n{marks}\n"
                text = marks = ""
    yield f"{text}\n{marks}\n" if text else ""


def render_page(scored: Iterable[Scored], names: Sequence[str], conditions: str) -> Iterator[str]:
    """Yield the page up to the table of results; `conditions` says how texts were scored, in a sentence."""
    title = escape(names[0] if len(names) == 1 else f"{len(names)} files")
    light, dark = (" ".join(f"--l{n}: {shade};" for n, shade in enumerate(each, 1)) for each in (_LIGHT, _DARK))
    rules = "".join(f".l{n} {{ background: var(--l{n}); }}\n" for n in range(1, len(LEVELS)))
    swatches = " ".join(f'<i class="l{n}">{escape(name)}</i>' for n, name in enumerate(_ranges()))
    yield (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE.replace('LIGHT', light).replace('DARK', dark)}{rules}</style></head>\n"
        f"<body>\n<header><h1>{title}</h1><p>{escape(conditions)}</p></header>\n"
        f'<div class="legend">bits per token: {swatches}</div>\n'
    )
    length = 0
    for heading, span in _with_headings(merge_into_spans(scored), names):
        if heading:
            yield f"{'</div>' if length else ''}\n<h2>{escape(heading)}</h2>\n"
            length = 0
        yield ('<div class="text" dir="auto">' if not length else "") + _render_span(span)
        length += len(span.text)
        if length > _BLOCK and span.text.endswith("\n"):  # blocks end with lines
            yield "</div>\n"
            length = 0
    yield "</div>\n" if length else ""


def _render_span(span: TextSpan) -> str:
    """Return a span in its colour, with its surprisal as a tooltip."""
    figures = "not scored" if isnan(span.bits) else f"{span.bits:.2f} bits"
    parts = f" · {span.tokens} tokens" if span.tokens > 1 else ""
    shown = escape_controls_and_line_ends(span.text)
    about = escape(f"{shown.replace(chr(10), LINE_END)!r} · {figures}{parts}")
    lines = escape(shown).replace("\n", f"<u>{LINE_END}</u>\n")
    return f'<i class="l{_find_level(span.bits)}" data-t="{about}">{lines}</i>'


def render_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the table of results, which the style places above the text, and the end of the page."""
    lines = [
        f"<tr>{''.join(f'<{tag}>{escape(escape_controls_and_line_ends(cell))}</{tag}>' for cell in cells)}</tr>\n"
        for tag, cells in (("th", columns), *(("td", row) for row in rows))
    ]
    return f"<table>{''.join(lines)}</table>\n</body></html>\n"
