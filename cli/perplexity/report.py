"""Scores texts for `lm perplexity`, and prints the results: tables, JSON and CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

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
from lm.config.data import FilesConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.errors import InputError, UsageError
from lm.evaluation.comparison import PairedDifference, compare_models
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.held_out import open_texts
from lm.evaluation.perplexity import PerplexityResult
from lm.evaluation.scoring import Scored, ScoredTexts, Scorer, load_window_scorer
from lm.evaluation.surprisal import iterate_tokens, iterate_words
from lm.files import atomic_write_text
from lm.hardware import divide_threads, select_inference_hardware
from lm.model.transformer import count_parameters
from lm.processes import open_process_map
from lm.text.find import total_text_bytes
from lm.text.parallel_text import ParallelText

COLUMNS = (
    "file", "tokens", "words", "bytes", "perplexity/token", "perplexity/word", "bits/byte", "std error, bits/byte",
)  # fmt: skip
_FIGURES = (
    "tokens", "unscored", "documents", "words", "bytes", "nats", "nats_per_token", "perplexity", "word_perplexity",
    "bits_per_byte", "standard_error", "unknown_tokens", "lost_bytes", "shortened", "blank",
)  # fmt: skip
_DIFFERENCES = (
    "bytes", "segments", "blocks", "first_bits_per_byte", "second_bits_per_byte", "difference", "standard_error", "z",
)  # fmt: skip
_UNITS = {
    "text": ("token", "given the preceding ones in its window", "document"),
    "masked": ("masked token", "masked in turn, given both sides (pseudo-perplexity)", "document"),
    "examples": ("completion token", "given its prompt, the end of each completion included", "example"),
    "conversations": ("assistant token", "given all messages before, the end of each turn included", "conversation"),
    "pairs": ("target token", "given its source, the end of each sentence included", "pair"),
}
_MAX_WORD_BYTES = 20  # on average; where words are longer, their perplexity is an astronomical number that says nothing
_CLEAR = 2  # standard errors: a difference that chance makes in one case of twenty


class Measurement:
    """A run, the texts that it scores, and the totals of each file."""

    def __init__(
        self,
        run: Path,
        options: Options,
        files: Sequence[str],
        find_texts: Callable[[LoadedModel], ScoredTexts] | None = None,
    ) -> None:
        """Load a run, and find what it scores: files or what it held out, if no function finds other texts."""
        self.run, self.options = run, options
        self.hardware = select_inference_hardware(options.build(HardwareConfig))
        self.loaded = load_model(run, self.hardware)
        reading, data = options.build(FilesConfig), options.values["data"]
        self.texts = find_texts(self.loaded) if find_texts else open_texts(self.loaded, files, reading, data)
        self.scorer = Scorer(self.loaded, options.build(PerplexityConfig))
        self.kind = "masked" if self.scorer.is_masked else self.texts.kind
        self.results = [PerplexityResult() for _ in self.texts.files]

    @contextmanager
    def score(self, *, has_progress: bool) -> Iterator[Iterator[Scored]]:
        """Yield the scored tokens, which are counted; then warn of training text and of lost text.

        Raises:
            InputError: no token was scored.
        """
        processes, check = self.options.build(WorkersConfig).processes, ContaminationCheck(self.loaded)
        hardware = divide_threads(self.options.build(HardwareConfig), processes)
        prepare = partial(load_window_scorer, self.run, hardware, self.options.build(PerplexityConfig))
        files = [file.source if isinstance(file, ParallelText) else file for file in self.texts.files]
        size = None if self.texts.kind == "pairs" else total_text_bytes(files)
        with (
            open_process_map(prepare, processes) if processes > 1 else nullcontext() as parallel_map,
            show_counter("scoring", "bytes", total=size) if has_progress else nullcontext(lambda _: None) as show,
        ):

            def count() -> Iterator[Scored]:
                done = 0
                for scored in check.watch(self.scorer.score(self.texts, parallel_map)):
                    self.results[scored.piece.file].add(scored)
                    done += len(scored.piece.data) * len(scored.nats) // max(1, len(scored.piece.tokens))
                    show(done)
                    yield scored

            yield count()
        print_notes(note for file in files for note in file.notes)
        print_warnings(check.warnings(self.texts.names))
        if (total := self.total).loses_text:
            unknown = f"{format_number_of(total.unknown_tokens, 'unknown token')}, {total.lost_bytes:,} lost bytes"
            print_warnings([f"{self.run}: {unknown}: per word and bits/byte compare with no other tokenizer"])
        if not total.tokens:
            raise InputError(f"{', '.join(self.texts.names)}: nothing to score")

    @property
    def total(self) -> PerplexityResult:
        return PerplexityResult.total(self.results)

    @property
    def named_results(self) -> list[tuple[str, PerplexityResult]]:
        """Return the result of each file, and the total."""
        names = [
            file.target.name if isinstance(file, ParallelText) and file.target else file.name
            for file in self.texts.files
        ]
        return [*zip(names, self.results, strict=True), ("total", self.total)]

    def conditions(self) -> dict[str, Any]:
        """Return how texts were scored, and by which model."""
        tokenizer, scorer = self.loaded.tokenizer, self.scorer
        windows = {"stride": scorer.stride, "first_token_scored": tokenizer.start_of_text is not None}
        return {
            "unit": _UNITS[self.kind][0],
            "dtype": self.hardware.dtype,
            "context": scorer.context,
            **(windows if self.texts.kind == "text" else {}),
            **({"score_every": scorer.score_every} if scorer.is_masked else {}),
            "model": {
                "run": str(self.run),
                "checkpoint": str(self.loaded.folder),
                "parameters": count_parameters(self.loaded.model),
                "context_length": self.loaded.config.model.context_length,
            },
            "tokenizer": {"vocab_size": tokenizer.vocab_size, "sha256": tokenizer.sha256},
        }

    def describe(self) -> str:
        """Describe in a sentence how, and how much, text was scored."""
        unit, given, noun = _UNITS[self.kind]
        total, scorer = self.total, self.scorer
        counts = {"unscored": total.unscored, "shortened": total.shortened, "left out": total.blank}
        return "; ".join([
            f"per {unit} ({self.loaded.tokenizer.vocab_size:,} in the vocabulary), {given}",
            f"context {scorer.context}" + (f", stride {scorer.stride}" if self.texts.kind == "text" else ""),
            format_number_of(total.documents, noun),
            *(f"{count:,} {what}" for what, count in counts.items() if count),
        ])  # fmt: skip

    def figures(self, result: PerplexityResult) -> dict[str, Any]:
        names = {"documents": "pairs"} if self.kind == "pairs" else {}
        return {names.get(name, name): getattr(result, name) for name in _FIGURES}

    def rows(self) -> list[list[str]]:
        """Return a row per file, and for several files their total."""
        rows = []
        for name, result in self.named_results:
            per_word = result.word_perplexity if result.bytes <= _MAX_WORD_BYTES * result.words else None
            counts = [f"{count:,}" for count in (result.tokens, result.words, result.bytes)]
            figures = (result.perplexity, per_word, result.bits_per_byte, result.bits_per_byte_error)
            rows.append([name, *counts, *map(format_value, figures, (3, 3, 4, 4))])
        return rows if len(rows) > 2 else rows[:1]


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
    names, scorer = measured.texts.names, measured.scorer
    with measured.score(has_progress=not (per_token or per_word or show)) as scored:
        if per_token or per_word:
            _print_rows((iterate_words if per_word else iterate_tokens)(scored, names), as_csv=as_csv)
        elif show:
            surprisal.print_text(scored, names)
        elif html is not None:
            conditions = f"Surprisal under {measured.run}, context {scorer.context}, stride {scorer.stride}"
            with atomic_write_text(html) as page:
                page.writelines(surprisal.render_page(scored, names, conditions))
                page.write(surprisal.render_table(COLUMNS, measured.rows()))
            print_note(f"wrote {html}")
        else:
            for _ in scored:
                pass
    if per_token or per_word:
        print_note(measured.describe())
    elif as_json:
        *files, (_, total) = measured.named_results
        report = {"files": [{"file": name, **measured.figures(result)} for name, result in files]}
        print(format_json_line({**report, "total": measured.figures(total), **measured.conditions()}))
    elif as_csv:
        _print_rows(({"file": name, **measured.figures(each)} for name, each in measured.named_results), as_csv=True)
        print_note(measured.describe())
    else:
        print_table(COLUMNS, measured.rows())
        print_paragraph(measured.describe())


def _print_rows(rows: Iterable[Mapping[str, Any]], *, as_csv: bool) -> None:
    """Print rows as JSON Lines or CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if not as_csv:
            print(format_json_line(row))
            continue
        if number == 0:
            writer.writerow(row)
        writer.writerow(escape_for_stream(value) if isinstance(value, str) else value for value in row.values())


def measure_versus(first: Measurement, second: Measurement, *, as_json: bool) -> None:
    """Score texts by two runs, and print the difference."""
    if first.scorer.is_masked != second.scorer.is_masked:
        raise UsageError(f"{second.run}: the pseudo-perplexity of a masked model compares with no other (--versus)")
    with first.score(has_progress=True) as scored, second.score(has_progress=False) as others:
        differences = compare_models(scored, others, files=len(first.texts.files))
    total, runs = PairedDifference.total(differences), [str(first.run), str(second.run)]
    is_same = first.loaded.tokenizer.sha256 == second.loaded.tokenizer.sha256
    is_comparable = is_same or not (first.total.loses_text or second.total.loses_text)
    named = [*zip(first.texts.names, differences, strict=True), ("total", total)]
    found = [{"file": name, **{key: getattr(one, key) for key in _DIFFERENCES}} for name, one in named]
    for one in found:
        one["z"] = one["z"] if is_comparable else None
    if as_json:
        report = {"files": found[:-1], "total": found[-1], "unit": "byte", "comparable": is_comparable}
        for side, measured in (("first", first), ("second", second)):
            lost = {name: getattr(measured.total, name) for name in ("unknown_tokens", "lost_bytes")}
            report[side] = {**measured.conditions(), **lost}
        print(format_json_line(report))
        return
    rows = [
        [
            one["file"],
            f"{one['bytes']:,}",
            *("–" if one[key] is None else f"{one[key]:.4f}" for key in _DIFFERENCES[3:]),
        ]
        for one in found
    ]
    columns = ("file", "bytes", "first, bits/byte", "second, bits/byte", "difference", "std error, bits/byte", "z")
    print_table(columns, rows if len(rows) > 2 else rows[:1])
    print_paragraph(f"{total.segments:,} segments in {total.blocks:,} blocks; first: {runs[0]}, second: {runs[1]}")
    print_paragraph(
        verdict(total, runs) if is_comparable else "no verdict: a tokenizer loses text, which costs no bits"
    )


def verdict(total: PairedDifference, runs: Sequence[str]) -> str:
    """Return the conclusion from a difference, in a sentence."""
    if not total.difference:
        return "there is no difference"
    better, worse = runs if total.difference < 0 else runs[::-1]
    size = f"{abs(total.difference):.4f}"
    if total.standard_error is None or total.z is None:
        return f"{better} is ahead of {worse} by {size} bits/byte; the text is too short to say how surely"
    margin = f"{size} ± {total.standard_error:.4f} bits/byte (z = {abs(total.z):.1f})"
    if abs(total.z) < _CLEAR:
        return f"no clear difference: {better} is ahead of {worse} by {margin}"
    return f"{better} is better than {worse} by {margin}"
