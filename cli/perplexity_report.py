"""What `lm perplexity` prints: tables, JSON and CSV, or text coloured by surprisal on stdout or as an HTML page."""

from __future__ import annotations

import csv
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from html import escape
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from cli.console import (
    LINE_END,
    RESET,
    escape_controls_and_line_ends,
    escape_for_stream,
    format_json_line,
    format_number_of,
    format_value,
    print_note,
    print_notes,
    print_paragraph,
    print_warnings,
)
from cli.console.figures import print_table, show_counter
from cli.options import Options
from lm.checkpoint import LoadedModel, load_model
from lm.config.inference import PerplexityConfig
from lm.config.run_config import HardwareConfig
from lm.errors import InputError, UsageError
from lm.evaluation.perplexity import (
    ContaminationCheck,
    PairedDifference,
    PerplexityResult,
    TextSpan,
    check_kinds,
    compare_models,
    iterate_tokens,
    iterate_words,
    merge_into_spans,
)
from lm.evaluation.scoring import Scored, ScoredTexts, Scorer
from lm.files import atomic_write_text
from lm.hardware import select_hardware

Row = Mapping[str, Any]

_FIGURES = (
    "tokens", "unscored", "documents", "words", "bytes", "nats", "nats_per_token", "perplexity", "word_perplexity",
    "bits_per_byte", "unknown_tokens", "lost_bytes", "shortened", "blank",
)  # fmt: skip
_COLUMNS = {
    "file": "file", "tokens": "tokens", "words": "words", "bytes": "bytes", "perplexity": "perplexity/token",
    "word_perplexity": "perplexity/word", "bits_per_byte": "bits/byte",
}  # fmt: skip
_VERSUS_COLUMNS = {
    "file": "file", "bytes": "bytes", "first_bits_per_byte": "first, bits/byte",
    "second_bits_per_byte": "second, bits/byte", "difference": "difference", "standard_error": "std error, bits/byte",
    "z": "z",
}  # fmt: skip
_CONDITIONS = ("context", "stride", "adapt")
_UNITS = {
    "text": "token", "masked": "masked token", "examples": "completion token", "conversations": "assistant token",
    "pairs": "target token",
}  # fmt: skip


class Measurement:
    """A run, the texts that it scores, and the totals of each file."""

    def __init__(self, run: Path, options: Options, find_texts: Callable[[LoadedModel], ScoredTexts]) -> None:
        """Load a run, and find what it scores."""
        self.run, self.hardware = run, select_hardware(options.build(HardwareConfig))
        self.loaded = load_model(run, self.hardware)
        self.texts, self.scorer = find_texts(self.loaded), Scorer(self.loaded, options.build(PerplexityConfig))
        self.results = [PerplexityResult() for _ in self.texts.files]

    def score(self, *, has_progress: bool = True) -> Iterator[Scored]:
        """Yield the scored texts, which are counted; then warn of training text and of lost text.

        Raises:
            InputError: no token was scored.
        """
        check, done = ContaminationCheck(self.loaded), 0
        with show_counter("scoring", "bytes") if has_progress else nullcontext() as show:
            for scored in check.watch(self.scorer.score(self.texts)):
                self.results[scored.file].add(scored)
                done += len(scored.text.encode())
                if show:
                    show(done)
                yield scored
        print_notes(note for file in self.texts.files for note in file.notes)
        print_warnings(check.warnings(self.texts.names))
        total = PerplexityResult.total(self.results)
        if total.loses_text:
            lost = f"{total.unknown_tokens:,} unknown tokens, {total.lost_bytes:,} lost bytes"
            print_warnings([f"{self.run}: {lost}: results compare with no other tokenizer"])
        if not total.tokens:
            raise InputError(f"{', '.join(self.texts.names)}: nothing to score")

    def rows(self) -> list[Row]:
        """Return the figures of each file, and of all."""
        results = [*self.results, PerplexityResult.total(self.results)]
        return [
            {"file": name, **{figure: getattr(result, figure) for figure in _FIGURES}}
            for name, result in zip([*self.texts.names, "total"], results, strict=True)
        ]

    def conditions(self) -> Row:
        """Return how texts were scored, and by which model."""
        tokenizer, scorer = self.loaded.tokenizer, self.scorer
        return {
            "run": str(self.run),
            "checkpoint": str(self.loaded.folder),
            "unit": _UNITS["masked" if scorer.is_masked else self.texts.kind],
            "dtype": "float32" if scorer.adapt else self.hardware.dtype,
            "context": scorer.context,
            **({"stride": scorer.stride} if self.texts.kind == "text" else {}),
            **({"adapt": scorer.adapt} if scorer.adapt else {}),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.sha256,
        }

    def describe(self) -> str:
        """Describe in a sentence how, and how much, text was scored."""
        shown, total = self.conditions(), self.rows()[-1]
        parts = [f"per {shown['unit']}", *(f"{name} {shown[name]}" for name in _CONDITIONS if name in shown)]
        counts = [f"{total[name]:,} {name}" for name in ("unscored", "shortened", "blank") if total[name]]
        return "; ".join([", ".join(parts), format_number_of(total["documents"], "document"), *counts])


def measure(
    measured: Measurement,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    per_token: bool = False,
    per_word: bool = False,
    show: bool = False,
    html: Path | None = None,
) -> None:
    """Score texts, and print or write the report."""
    names, scored = measured.texts.names, measured.score(has_progress=not (per_token or per_word or show))
    if per_token or per_word:
        _print_rows((iterate_words if per_word else iterate_tokens)(scored, names), as_csv=as_csv)
        return
    if show:
        print_text(scored, names)
    elif html is not None:
        with atomic_write_text(html) as page:
            page.writelines(render_page(scored, names))
        print_note(f"wrote {html}")
    for _ in scored:
        pass
    *files, total = rows = measured.rows()
    if as_json:
        print(format_json_line({"files": files, "total": total, **measured.conditions()}))
    elif as_csv:
        _print_rows(rows, as_csv=True)
    else:
        _print_table(rows, _COLUMNS)
        print_paragraph(measured.describe())


def _print_rows(rows: Iterable[Row], *, as_csv: bool) -> None:
    """Print rows as JSON Lines or CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if not as_csv:
            print(format_json_line(row))
            continue
        if number == 0:
            writer.writerow(row)
        writer.writerow(escape_for_stream(value) if isinstance(value, str) else value for value in row.values())


def _print_table(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Print a row per file, and for several files their total."""
    shown = rows if len(rows) > 2 else rows[:1]
    cells = [[format_value(row[name], 3 if "perplexity" in name else 4) for name in columns] for row in shown]
    print_table([*columns.values()], cells)


def measure_versus(first: Measurement, second: Measurement, *, as_json: bool, as_csv: bool) -> None:
    """Score texts by two runs, and print the difference; UsageError if the second scores no such texts."""
    check_kinds(second.loaded, second.texts.files)
    if first.scorer.is_masked != second.scorer.is_masked:
        raise UsageError(f"{second.run}: the pseudo-perplexity of a masked model compares with no other (--versus)")
    sides = (first, second)
    by_file = compare_models(*(side.score() for side in sides), files=len(first.texts.files))
    is_same = first.loaded.tokenizer.sha256 == second.loaded.tokenizer.sha256
    is_comparable = is_same or not any(PerplexityResult.total(side.results).loses_text for side in sides)
    rows = [
        {"file": name, **asdict(PairedDifference.of_blocks(blocks))} | ({} if is_comparable else {"z": None})
        for name, blocks in zip([*first.texts.names, "total"], [*by_file, np.concatenate(by_file)], strict=True)
    ]
    if as_json:
        *files, total = rows
        report = {"files": files, "total": total, "unit": "byte", "comparable": is_comparable}
        report |= {name: side.conditions() for name, side in zip(("first", "second"), sides, strict=True)}
        print(format_json_line(report))
    elif as_csv:
        _print_rows(rows, as_csv=True)
    else:
        _print_table(rows, _VERSUS_COLUMNS)
        print_paragraph(f"{rows[-1]['blocks']:,} blocks; first: {first.run}, second: {second.run}")


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
