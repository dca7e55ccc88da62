"""Text coloured by surprisal: on stdout, or as a self-contained HTML page."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import isnan

from cli.console.colours import RESET
from cli.console.text import LINE_END, escape_controls_and_line_ends
from lm.evaluation.perplexity import TextSpan, merge_into_spans
from lm.evaluation.scoring import Scored

_LIMITS = (0, 1, 2, 4, 6, 8, 11, 14)
"""Lower bounds of the levels, in bits."""
_ATTRIBUTES = ("2", "0", "38;5;16;48;5;187", "38;5;16;48;5;222", "38;5;16;48;5;215",
               "38;5;16;48;5;209", "38;5;16;48;5;167", "38;5;231;48;5;89")  # fmt: skip
"""SGR codes: faint, none, or text and background from the 256-colour palette, which themes don't change. The colours
grow darker too, so that the colour-blind can tell them apart."""
_RANGES = ("<1", "1–2", "2–4", "4–6", "6–8", "8–11", "11–14", "≥14")

_LINE = '<div class="text" dir="auto">'  # the browser lays out only the lines in view

_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #1d1d1b; --faint: #6d6d68; --strong: #fff;
  --l1: #fff8d6; --l2: #ffedb0; --l3: #fed976; --l4: #feb24c; --l5: #fd8d3c; --l6: #d7351f; --l7: #8f0032; }
@media (prefers-color-scheme: dark) {
  :root { --page: #161617; --ink: #e4e3de; --faint: #98978f; --strong: #161617;
    --l1: #2b2718; --l2: #40361a; --l3: #5e4717; --l4: #86540f; --l5: #a34a10; --l6: #e0523a; --l7: #ff8f8a; } }
body { max-width: 52rem; margin: 0 auto; padding: 2rem 1.25rem 6rem; background: var(--page); color: var(--ink);
  font: 1.0625rem/1.75 ui-serif, Georgia, serif; }
.legend { position: sticky; top: 0; z-index: 1; padding: .5rem 0; background: var(--page);
  font: .875rem/1.5 ui-sans-serif, system-ui, sans-serif; }
.legend i { padding: .125rem .5rem; }
h2 { margin: 2rem 0 .5rem; font: 600 .9375rem ui-sans-serif, system-ui, sans-serif; color: var(--faint); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; content-visibility: auto; contain-intrinsic-size: auto 2rem; }
i { position: relative; font-style: normal; border-radius: .125rem; padding: .125rem 0; }
i u { color: var(--faint); text-decoration: none; opacity: .6; user-select: none; }
.l1 { background: var(--l1); } .l2 { background: var(--l2); } .l3 { background: var(--l3); }
.l4 { background: var(--l4); } .l5 { background: var(--l5); }
.l6 { background: var(--l6); } .l7 { background: var(--l7); }
i:is(.l6, .l7) { color: var(--strong); }
i[data-t]:hover { outline: 2px solid var(--ink); }
i[data-t]:hover::after { content: attr(data-t); position: fixed; left: 1rem; bottom: 1rem;
  max-width: calc(100vw - 2rem); padding: .375rem .75rem; border-radius: .375rem;
  background: var(--ink); color: var(--page); white-space: pre;
  font: .875rem/1.4 ui-sans-serif, system-ui, sans-serif; }
"""


def print_text(scored: Iterable[Scored], names: Sequence[str]) -> None:
    """Print the text with each token in the colour of its surprisal, line ends as arrows."""
    print("bits per token:", *map(_paint, (f" {name} " for name in _RANGES), range(len(_RANGES))))
    for heading, span in _with_headings(merge_into_spans(scored), names):
        if heading:
            print(f"\n\x1b[1m── {heading} ──{RESET}")
        for line in escape_controls_and_line_ends(span.text).splitlines(keepends=True):
            sys.stdout.write(_paint(line.replace("\n", LINE_END), _find_level(span.bits)) + "\n" * line.endswith("\n"))
    print()


def _paint(text: str, level: int) -> str:
    """Return coloured text; where it wraps, the rest of the line has no colour."""
    return f"\x1b[{_ATTRIBUTES[level]}m{text}{RESET}\x1b[K"


def _find_level(bits: float) -> int:
    """Return the level of a surprisal; the first for NaN."""
    return 0 if isnan(bits) else bisect_right(_LIMITS, bits) - 1


def _with_headings(spans: Iterable[TextSpan], names: Sequence[str]) -> Iterator[tuple[str, TextSpan]]:
    """Yield spans with the heading before them: of each file if there are several, and of later documents."""
    place = (0, 0) if len(names) == 1 else (-1, 0)
    for span in spans:
        before, place = place, (span.file, span.document)
        file = escape_controls_and_line_ends(names[span.file])
        yield "" if place == before else f"{file}, document {span.document + 1}", span


def render_page(scored: Iterable[Scored], names: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a page."""
    title = escape(names[0] if len(names) == 1 else f"{len(names)} files")
    swatches = " ".join(f'<i class="l{n}">{escape(name)}</i>' for n, name in enumerate(_RANGES))
    yield (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n"
        f'<body>\n<h1>{title}</h1>\n<div class="legend">bits per token: {swatches}</div>\n'
    )
    yield _LINE
    for heading, span in _with_headings(merge_into_spans(scored), names):
        if heading:
            yield f"</div>\n<h2>{escape(heading)}</h2>\n{_LINE}"
        yield _render_span(span)
        if span.text.endswith("\n"):
            yield f"</div>\n{_LINE}"
    yield "</div>\n</body></html>\n"


def _render_span(span: TextSpan) -> str:
    """Return a span in its colour, with its surprisal as a tooltip."""
    surprisal = "not scored" if isnan(span.bits) else f"{span.bits:.2f} bits"
    shown = escape_controls_and_line_ends(span.text)
    about = escape(f"{shown.replace(chr(10), LINE_END)!r} · {surprisal} · tokens: {span.tokens}")
    lines = escape(shown).replace("\n", f"<u>{LINE_END}</u>\n")
    return f'<i class="l{_find_level(span.bits)}" data-t="{about}">{lines}</i>'
