"""`lm perplexity RUN --source … --target …`: perplexity of given translations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from cli.console.escapes import format_json_line
from cli.console.messages import print_note, print_notes, print_paragraph, print_warnings
from cli.console.numbers import format_number_of, format_value
from cli.console.progress import show_counter
from cli.console.tables import print_table
from cli.perplexity.report import shown_word_perplexity, warn_of_lost_text
from cli.perplexity.report_options import PairFiles
from lm.checkpoint import LoadedModel, load_model
from lm.config.data import FilesConfig
from lm.config.hardware import HardwareConfig
from lm.config.model import check_heads_given
from lm.data.batch import Batch
from lm.decoding.translation_input import TranslationModel
from lm.errors import InputError, UsageError
from lm.evaluation import pair_scoring
from lm.evaluation.batch_scoring import Nats, score_batch
from lm.evaluation.contamination import ContaminationCheck
from lm.evaluation.held_out import open_held_out_pairs
from lm.evaluation.pair_scoring import PairScores
from lm.evaluation.perplexity import PerplexityResult
from lm.hardware import divide_threads, select_inference_hardware
from lm.model.transformer import EncoderOnly, count_parameters
from lm.processes import ParallelMap, open_process_map
from lm.run_folder import find_checkpoint, load_config
from lm.text.parallel_text import ParallelText, find_parallel_texts

COLUMNS = ("target", "pairs", "tokens", "words", "nats/token", "std error", "perplexity", "per word", "bits/byte")


def measure_pairs(
    run: Path,
    pairs: PairFiles,
    reading: FilesConfig,
    hardware: HardwareConfig,
    *,
    columns: Mapping[str, Any],
    processes: int,
    as_json: bool,
) -> None:
    """Score each target given its source, in files or in the held-out pairs of a run, and print the report.

    `columns` are settings of `ParallelTextConfig`, for rows with both sides.
    """
    config = load_config(find_checkpoint(run)).parallel.for_other_files(**columns)
    files = find_parallel_texts(
        config, reading, source=pairs.sources, target=pairs.targets, pairs=pairs.pairs, heads=pairs.heads
    )
    loaded = load_model(run, select_inference_hardware(hardware))
    held_out_language = None
    if not files:
        held_out, held_out_language = open_held_out_pairs(loaded)
        files = [held_out]
    prepare = partial(_build_worker, run, divide_threads(hardware, processes))
    scores: list[PairScores] = []
    try:
        with open_process_map(prepare, processes) if processes > 1 else nullcontext() as parallel_map:
            for file in files:
                languages = pairs.language, held_out_language or file.languages[1]
                scores.append(_score(run, loaded, file, languages, parallel_map))
    finally:
        names = [str(file.target.name if file.target else file.name) for file in files]
        _print_scores(run, loaded, list(zip(names, scores, strict=False)), files=len(files), as_json=as_json)
    contamination = ContaminationCheck(loaded)
    for file in files:
        contamination.add_pairs(file.records())
    print_notes(note for file in files for note in file.notes)
    print_warnings(contamination.warnings([file.name for file in files]))
    if not any(score.result.tokens for score in scores):
        raise InputError(f"{files[0].name}: nothing to score: there is no pair with two sides")


def _print_scores(
    run: Path, loaded: LoadedModel, scores: Sequence[tuple[str, PairScores]], *, files: int, as_json: bool
) -> None:
    """Print the scores by file, unless there are none, and their total if all files were scored."""
    total = PerplexityResult.total(score.result for _, score in scores)
    blank, is_complete, tokenizer = sum(score.blank for _, score in scores), len(scores) == files, loaded.tokenizer
    if not total.tokens:
        return
    warn_of_lost_text(total)
    if as_json:
        totals = {"total": {"blank": blank, **_figures(total)}} if is_complete else {}
        report: dict[str, Any] = {
            "files": [{"file": name, "blank": score.blank, **_figures(score.result)} for name, score in scores],
            **totals,
            "unit": "target token",
            "model": {
                "run": str(run), "checkpoint": str(loaded.folder), "parameters": count_parameters(loaded.model),
            },
            "tokenizer": {"vocab_size": tokenizer.vocab_size, "sha256": tokenizer.sha256},
        }  # fmt: skip
        print(format_json_line(report))
        return
    rows = [_row(name, score.result) for name, score in scores]
    print_table(COLUMNS, [*rows, _row("total", total)] if len(rows) > 1 and is_complete else rows)
    print_paragraph(
        f"of each target token ({tokenizer.vocab_size:,} in the vocabulary), the end of the sentence included, after "
        "its source and the tokens before it"
    )
    if blank:
        print_note(f"{format_number_of(blank, 'pair')} with a blank side left out")


def _build_worker(run: Path, hardware: HardwareConfig) -> Callable[[Batch], list[Nats]]:
    """Load the run in a worker; returns its scoring function."""
    model = load_model(run, select_inference_hardware(hardware)).model
    assert not isinstance(model, EncoderOnly)
    return partial(score_batch, model)


def _score(
    run: Path,
    loaded: LoadedModel,
    file: ParallelText,
    languages: tuple[str | None, str | None],
    parallel_map: ParallelMap[Batch, list[Nats]] | None,
) -> PairScores:
    """Score the pairs of one file, with a counter; the target language is the user's, or else that of the file."""
    if isinstance(loaded.model, EncoderOnly) or not loaded.model.config.translates:
        purpose = loaded.config.purpose
        raise UsageError(f"{run}: this run {purpose}; name files of text instead of pairs")
    check_heads_given(loaded.config.model, are_given=file.heads is not None)
    language, file_language = languages
    tag = TranslationModel.from_loaded(loaded).tag_to(language, file_language=file_language)
    encoder = pair_scoring.PairEncoder(loaded.tokenizer, loaded.source_tokenizer, tag=tag)
    with show_counter("scoring", "pairs") as watch:
        for scored in pair_scoring.score_pairs_streaming(
            loaded.model, encoder, file.records(), name=file.name, parallel_map=parallel_map
        ):
            watch(scored.result.documents)
    return scored


def _row(name: str, result: PerplexityResult) -> list[str]:
    counts = [f"{count:,}" for count in (result.documents, result.tokens, result.words)]
    figures = (
        _nats_per_token(result),
        result.standard_error,
        result.perplexity,
        shown_word_perplexity(result),
        result.bits_per_byte,
    )
    return [name, *counts, *map(format_value, figures, (4, 4, 3, 3, 4))]


def _figures(result: PerplexityResult) -> dict[str, Any]:
    return {
        "pairs": result.documents,
        "tokens": result.tokens,
        "words": result.words,
        "bytes": result.bytes,
        "nats": result.nats,
        "nats_per_token": _nats_per_token(result),
        "standard_error": result.standard_error,
        "perplexity": result.perplexity,
        "word_perplexity": result.word_perplexity,
        "bits_per_byte": result.bits_per_byte,
        "unknown_tokens": result.unknown_tokens,
        "lost_bytes": result.lost_bytes,
    }


def _nats_per_token(result: PerplexityResult) -> float | None:
    return result.nats / result.tokens if result.tokens else None
