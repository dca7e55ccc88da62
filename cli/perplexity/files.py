"""`lm perplexity` of files: text by one model, two models or several dtypes, or supervised examples."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from cli.console.colours import is_colour_enabled
from cli.console.escapes import format_json_line
from cli.console.messages import print_labelled, print_note, print_notes, print_paragraph, print_warnings
from cli.console.numbers import format_bytes, format_value
from cli.console.progress import create_progress, show_counter
from cli.console.tables import print_table
from cli.options import Options
from cli.perplexity import report, surprisal_page, versus
from cli.perplexity.report_options import ReportFormat
from cli.perplexity.scorer import LoadedScorer
from cli.perplexity.surprisal import render_coloured, render_digits
from lm.config.data import DataKind, FilesConfig
from lm.config.hardware import HardwareConfig
from lm.errors import InputError, UsageError
from lm.evaluation import perplexity_comparison
from lm.evaluation.completion_scoring import RowScores, find_scored_kind, score_rows
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.dtype_costs import DtypeCost, measure_dtype_costs
from lm.evaluation.file_scoring import ScoredSegment
from lm.evaluation.held_out import open_held_out_text
from lm.evaluation.perplexity import BatchScored, FileScore, PerplexityResult
from lm.evaluation.perplexity_comparison import PairedDifference
from lm.evaluation.surprisal import iterate_token_scores, merge_into_spans
from lm.files import atomic_write_text
from lm.hardware import inference_dtypes, select_device
from lm.text.find import find_text_files, total_text_bytes
from lm.text.text_file import TextFile

_HELD_OUT_DIFFERENCE = (
    "windows overlap by context - stride, and each document is scored on its own; lm train measures disjoint windows "
    "of the whole split, so its loss differs a little"
)


def measure_files(run: Path, files: Sequence[str], output: ReportFormat, options: Options) -> None:
    """Score files, or the held-out split of a run, and print or write the report."""
    if output.compare_dtypes:
        options = options.with_values("hardware", dtype="float32")  # the baseline
    scorer = LoadedScorer.load(run, options)
    if files:
        texts = find_text_files(files, scorer.data, options.build(FilesConfig))
    else:
        texts = [open_held_out_text(scorer.loaded)]
    kind = find_scored_kind(scorer.loaded, texts)
    if kind != "text":
        output.refuse_reports_of_text("examples", {"stride"} & options.typed("perplexity").keys())
    if not (files or kind != "text" or scorer.loaded.config.model.is_masked):
        print_labelled("note", _HELD_OUT_DIFFERENCE)
    if files and scorer.loaded.learned_conversations and kind != "conversations":
        print_labelled("note", f"{run} was trained on the replies of conversations, and the files are other text")
    if kind != "text":
        with scorer.shared(of_examples=True) as shared:
            measure_rows(shared, texts, kind, output)
    elif output.versus is not None:
        other = LoadedScorer.load(output.versus, options, data=scorer.data)
        if scorer.text.model.config.is_masked != other.text.model.config.is_masked:
            raise UsageError(
                f"{run} and {output.versus}: one is a masked model, whose pseudo-perplexity compares with no other "
                "(--versus)"
            )
        with scorer.shared() as shared, other.shared() as second:
            _compare(shared, second, texts, as_json=output.as_json)
    elif output.compare_dtypes:
        _compare_dtypes(scorer, texts, as_json=output.as_json)
    else:
        with scorer.shared() as shared:
            measure_text(shared, texts, output)


def measure_text(scorer: LoadedScorer, files: Sequence[TextFile], output: ReportFormat) -> None:
    """Score files of text, and print or write the report: after an error, of the files before."""
    scores: list[FileScore] = []
    contamination = ContaminationCheck(scorer.loaded)
    try:
        with scoring_progress(files, hidden=(output.show or output.per_token) and sys.stdout.isatty()) as on_batch:
            segments = contamination.watch(scorer.text.score_segments(files, scores=scores, on_batch=on_batch))
            if output.html is not None:
                _write_page(output.html, segments, files, scorer, scores)
            elif output.show:
                _print_coloured(segments, files)
            elif output.per_token:
                for token in iterate_token_scores(segments, files):
                    print(format_json_line(vars(token)))
            else:
                for _ in segments:
                    pass
    finally:
        report.print_scores(scores, scorer.conditions, output, is_complete=len(scores) == len(files))
    _report_on_files([contamination], files)
    report.refuse_no_tokens(scores)


def _report_on_files(checks: Sequence[ContaminationCheck], files: Sequence[TextFile]) -> None:
    """Name the malformed rows that were left out, and warn of files that were training text of a run."""
    print_notes(note for file in files for note in file.notes)
    for contamination in checks:
        print_warnings(contamination.warnings([file.name for file in files]))


def _print_coloured(segments: Iterator[ScoredSegment], files: Sequence[TextFile]) -> None:
    """Print the text coloured by surprisal, or with the bits of each token beneath it."""
    names = [file.name for file in files]
    spans = merge_into_spans(segments)
    columns = shutil.get_terminal_size().columns
    width = columns if sys.stdout.isatty() else None  # a pager breaks lines at a width of its own
    for part in (
        render_coloured(spans, names, width=width)
        if is_colour_enabled()
        else render_digits(spans, names, width=columns)
    ):
        sys.stdout.write(part)
    print()


def _write_page(
    path: Path,
    segments: Iterator[ScoredSegment],
    files: Sequence[TextFile],
    scorer: LoadedScorer,
    scores: Sequence[FileScore],
) -> None:
    """Write the page while the text is scored; `scores` is complete at the end."""
    names = [file.name for file in files]
    title = names[0] if len(names) == 1 else f"{len(names)} files"
    conditions = f"Surprisal under {scorer.run}, context {scorer.text.context}, stride {scorer.text.stride}"
    with atomic_write_text(path) as page:
        page.write(surprisal_page.render_opening(title, conditions))
        page.writelines(surprisal_page.render_body(merge_into_spans(segments), names))
        page.write(surprisal_page.render_closing(scores, PerplexityResult.total(score.result for score in scores)))
    print_note(f"wrote {path}")


def _compare(scorer: LoadedScorer, other: LoadedScorer, files: Sequence[TextFile], *, as_json: bool) -> None:
    """Compare two models on files and print the difference."""
    results = PerplexityResult(), PerplexityResult()
    checks = ContaminationCheck(scorer.loaded), ContaminationCheck(other.loaded)
    with scoring_progress(files) as on_batch:
        scorers = (
            scorer.text.score_segments(files, scores=[], on_batch=on_batch),
            other.text.score_segments(files, scores=[]),
        )
        first, second = (
            _count_into(contamination.watch(segments), result)
            for contamination, segments, result in zip(checks, scorers, results, strict=True)
        )
        differences = perplexity_comparison.compare_models(first, second, files=len(files))
    _report_on_files(checks, files)
    total = PairedDifference.total(differences)
    if not total.bytes:
        raise InputError(f"{', '.join(file.name for file in files)}: nothing to score: there is no text")
    models = scorer.conditions, other.conditions
    is_same = scorer.loaded.tokenizer.sha256 == other.loaded.tokenizer.sha256
    compared = versus.ComparedRuns((scorer.run, other.run), results, is_same_tokenizer=is_same)
    if as_json:
        versus.print_json(files, differences, total, models, compared)
    else:
        versus.print_comparison_table(files, differences, total, models, compared)


def _count_into(segments: Iterator[ScoredSegment], result: PerplexityResult) -> Iterator[ScoredSegment]:
    """Pass segments through and count them."""
    for segment in segments:
        result.add_segment(segment)
        yield segment


@contextmanager
def scoring_progress(files: Sequence[TextFile], *, hidden: bool = False) -> Iterator[Callable[[BatchScored], None]]:
    """Show a progress bar on stderr if it is a free terminal."""
    columns = (TextColumn("scoring"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]} tokens/s"))
    with create_progress(*columns, TimeRemainingColumn(), hidden=hidden) as bar:
        task = bar.add_task("scoring", total=total_text_bytes(files), speed="–")

        def show(event: BatchScored) -> None:
            seconds = bar.tasks[0].elapsed
            bar.update(task, completed=event.bytes, speed=f"{event.tokens / seconds:.0f}" if seconds else "–")

        yield show


def measure_rows(scorer: LoadedScorer, files: Sequence[TextFile], kind: DataKind, output: ReportFormat) -> None:
    """Score the completions of examples, or the replies of conversations, and report as `measure_text`."""
    text, scored = scorer.text, RowScores()
    try:
        with show_counter("scoring", "examples") as on_rows:
            score_rows(
                scorer.loaded, files, scored, context=text.context, batch_size=text.batch_size,
                parallel_map=scorer.parallel_map, on_rows=on_rows,
            )  # fmt: skip
    finally:
        conditions = report.row_conditions(
            scorer.run, scorer.loaded, kind, context=text.context, shortened=scored.shortened
        )
        report.print_scores(scored.files, conditions, output, is_complete=len(scored.files) == len(files))
    print_notes(note for file in files for note in file.notes)
    print_warnings(scored.warnings)
    report.refuse_no_tokens(scored.files)


def _compare_dtypes(scorer: LoadedScorer, files: Sequence[TextFile], *, as_json: bool) -> None:
    """Score files in each dtype, and print what that costs."""
    first, *others = inference_dtypes(select_device(scorer.options.build(HardwareConfig)))
    by_dtype = {first: scorer.text}
    for dtype in others:
        options = scorer.options.with_values("hardware", dtype=dtype)
        by_dtype[dtype] = LoadedScorer.load(scorer.run, options, data=scorer.data).text
    costs: list[DtypeCost] = []
    with scoring_progress(files) as on_batch:
        for event in measure_dtype_costs(by_dtype, files, costs=costs):
            on_batch(event)
    report.refuse_no_tokens([FileScore(", ".join(file.name for file in files), costs[0].result)])
    if as_json:
        print(format_json_line({"types": [_figures(cost, costs[0]) for cost in costs], **scorer.conditions}))
        return
    columns = ("type", "bits/byte", "difference", "weights", "tokens/s")
    print_table(columns, [_row(cost, costs[0]) for cost in costs])
    print_paragraph(report.describe_conditions(scorer.conditions, costs[0].result))


def _row(cost: DtypeCost, first: DtypeCost) -> list[str]:
    increase = cost.relative_increase(first) if cost is not first else None
    difference = "–" if increase is None else f"{increase:+.3%}"
    bits = format_value(cost.result.bits_per_byte, 4)
    return [cost.dtype, bits, difference, format_bytes(cost.weight_bytes), f"{cost.tokens_per_second:,.0f}"]


def _figures(cost: DtypeCost, first: DtypeCost) -> dict[str, Any]:
    increase = cost.relative_increase(first)
    return {
        "dtype": cost.dtype,
        "bits_per_byte": cost.result.bits_per_byte,
        "difference_percent": None if increase is None else 100 * increase,
        "weight_bytes": cost.weight_bytes,
        "tokens_per_second": cost.tokens_per_second,
        "tokens": cost.result.tokens,
        "bytes": cost.result.bytes,
        "nats": cost.result.nats,
    }
