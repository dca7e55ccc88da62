"""Scores texts for `lm perplexity`, and prints the results: tables, JSON and CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cli.console.progress import show_counter
from cli.console.tables import print_table
from cli.console.text import (
    escape_for_stream,
    format_json_line,
    format_number_of,
    format_value,
    print_note,
    print_notes,
    print_paragraph,
    print_warnings,
)
from cli.options import Options
from cli.perplexity import surprisal
from lm.checkpoint import LoadedModel, load_model
from lm.config.inference import PerplexityConfig
from lm.config.run_config import HardwareConfig
from lm.errors import InputError, UsageError
from lm.evaluation.held_out import ContaminationCheck
from lm.evaluation.perplexity import PairedDifference, PerplexityResult, compare_models, iterate_tokens, iterate_words
from lm.evaluation.scoring import Scored, ScoredTexts, Scorer
from lm.files import atomic_write_text
from lm.hardware import select_inference_hardware

Row = Mapping[str, Any]

_FIGURES = (
    "tokens", "unscored", "documents", "words", "bytes", "nats", "nats_per_token", "perplexity", "word_perplexity",
    "bits_per_byte", "standard_error", "bits_per_byte_error", "unknown_tokens", "lost_bytes", "shortened", "blank",
)  # fmt: skip
_COLUMNS = {
    "file": "file", "tokens": "tokens", "words": "words", "bytes": "bytes", "perplexity": "perplexity/token",
    "word_perplexity": "perplexity/word", "bits_per_byte": "bits/byte", "bits_per_byte_error": "std error, bits/byte",
}  # fmt: skip
_VERSUS_COLUMNS = {
    "file": "file", "bytes": "bytes", "first_bits_per_byte": "first, bits/byte",
    "second_bits_per_byte": "second, bits/byte", "difference": "difference", "standard_error": "std error, bits/byte",
    "z": "z",
}  # fmt: skip
_UNITS = {
    "text": "token", "masked": "masked token", "examples": "completion token", "conversations": "assistant token",
    "pairs": "target token",
}  # fmt: skip


class Measurement:
    """A run, the texts that it scores, and the totals of each file."""

    def __init__(self, run: Path, options: Options, find_texts: Callable[[LoadedModel], ScoredTexts]) -> None:
        """Load a run, and find what it scores."""
        self.run, self.hardware = run, select_inference_hardware(options.build(HardwareConfig))
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
            "dtype": self.hardware.dtype,
            "context": scorer.context,
            **({"stride": scorer.stride} if self.texts.kind == "text" else {}),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.sha256,
        }

    def describe(self) -> str:
        """Describe in a sentence how, and how much, text was scored."""
        shown, total = self.conditions(), self.rows()[-1]
        parts = [f"per {shown['unit']}", *(f"{name} {shown[name]}" for name in ("context", "stride") if name in shown)]
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
        surprisal.print_text(scored, names)
    elif html is not None:
        with atomic_write_text(html) as page:
            page.writelines(surprisal.render_page(scored, names))
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


def measure_versus(first: Measurement, second: Measurement, *, as_json: bool) -> None:
    """Score texts by two runs, and print the difference."""
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
        described = {name: side.conditions() for name, side in zip(("first", "second"), sides, strict=True)}
        report = {"files": files, "total": total, "unit": "byte", "comparable": is_comparable}
        print(format_json_line({**report, **described}))
        return
    _print_table(rows, _VERSUS_COLUMNS)
    print_paragraph(f"{rows[-1]['blocks']:,} blocks; first: {first.run}, second: {second.run}")
