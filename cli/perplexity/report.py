"""Reports of `lm perplexity`: results by file as a table, JSON or CSV."""

from __future__ import annotations

import csv
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.console.escapes import escape_for_stream, format_json_line
from cli.console.messages import print_labelled, print_note, print_paragraph
from cli.console.numbers import format_number_of, format_value
from cli.console.tables import print_table
from cli.perplexity.report_options import ReportFormat
from lm.checkpoint import LoadedModel
from lm.config.data import DataKind
from lm.errors import InputError
from lm.evaluation.perplexity import FileScore, MacroAverage, PerplexityResult
from lm.model.transformer import count_parameters

COLUMNS = ("file", "tokens", "words", "bytes", "perplexity", "per word", "bits/byte", "std error")
FIGURES = (
    "tokens", "unscored", "documents", "words", "bytes", "nats",
    "perplexity", "word_perplexity", "bits_per_byte", "standard_error", "unknown_tokens", "lost_bytes",
)  # fmt: skip

_MAX_WORD_BYTES = 20
"""On average; where words are longer, their perplexity is an astronomical number that says nothing."""

COMPLETION_TOKEN, REPLY_TOKEN, MASKED_TOKEN = "completion token", "assistant token", "masked token"
"""Units other than the token of a text."""


def scoring_conditions(
    run: Path, loaded: LoadedModel, *, context: int, stride: int, score_every: int = 1
) -> dict[str, Any]:
    """Return how text was scored, and by which model."""
    sizes = {"context": context, "stride": stride}
    if loaded.model.config.is_masked:
        return {"unit": MASKED_TOKEN, **sizes, "score_every": score_every, **_run_facts(run, loaded)}
    start = loaded.tokenizer.start_of_text is not None
    return {"unit": "token", **sizes, "first_token_scored": start, **_run_facts(run, loaded)}


def row_conditions(run: Path, loaded: LoadedModel, kind: DataKind, *, context: int, shortened: int) -> dict[str, Any]:
    """Return how completions or replies were scored, and by which model."""
    return {
        "unit": REPLY_TOKEN if kind == "conversations" else COMPLETION_TOKEN,
        "context": context,
        "shortened": shortened,
        **_run_facts(run, loaded),
    }


def _run_facts(run: Path, loaded: LoadedModel) -> dict[str, Any]:
    tokenizer = loaded.tokenizer
    return {
        "model": {
            "run": str(run),
            "checkpoint": str(loaded.folder),
            "parameters": count_parameters(loaded.model),
            "context_length": loaded.config.model.context_length,
        },
        "tokenizer": {"vocab_size": tokenizer.vocab_size, "sha256": tokenizer.sha256},
    }


def describe_lost_text(result: PerplexityResult) -> str:
    """Describe what the tokenizer loses of a text, as part of a sentence."""
    unknown = f"{format_number_of(result.unknown_tokens, 'unknown token')} and " if result.unknown_tokens else ""
    return f"{unknown}{result.lost_bytes:,} bytes that don't survive a round trip through the tokenizer"


def warn_of_lost_text(result: PerplexityResult) -> None:
    """Warn on stderr if the tokenizer loses some of the text."""
    if result.loses_text:
        print_labelled(
            "warning", f"{describe_lost_text(result)}: per word and bits/byte are not comparable with other tokenizers"
        )


def describe_conditions(conditions: dict[str, Any], total: PerplexityResult) -> str:
    """Describe in a sentence how, and how much, text was scored."""
    vocabulary = f"({conditions['tokenizer']['vocab_size']:,} in the vocabulary)"
    context, shortened = f"context {conditions['context']}", conditions.get("shortened")
    if conditions["unit"] == COMPLETION_TOKEN:
        lost = f", of which {shortened:,} lost the beginning of the prompt" if shortened else ""
        return (
            f"perplexity per token of the completions {vocabulary}, the end of each included, after its prompt, as the "
            f"run is supervised; {context}; {format_number_of(total.documents, 'example')}{lost}"
        )
    if conditions["unit"] == REPLY_TOKEN:
        lost = f", of which {shortened:,} lost their last turns" if shortened else ""
        return (
            f"perplexity per token of the assistant {vocabulary}, the end of each turn included, after all messages "
            f"before; {context}; {format_number_of(total.documents, 'conversation')}{lost}"
        )
    window, documents = f"{context}, stride {conditions['stride']}", format_number_of(total.documents, "document")
    if conditions["unit"] == MASKED_TOKEN:
        every = conditions["score_every"]
        sampled = f"only one in {every} is scored ({total.unscored:,} are not); " if every > 1 else ""
        return (
            f"pseudo-perplexity per token {vocabulary}: each is masked in turn and guessed from both sides, which no "
            f"perplexity from one side compares with; {sampled}{window}; {documents}"
        )
    is_conditioned = conditions["first_token_scored"]
    start = "conditioned on a document-start token" if is_conditioned else "with an unscored first token"
    return (
        f"perplexity per token {vocabulary}, {window}; {documents}, each {start} ({total.unscored:,} tokens unscored)"
    )


def print_scores(
    scores: Sequence[FileScore], conditions: dict[str, Any], output: ReportFormat, *, is_complete: bool
) -> None:
    """Print the results on stdout, as a table unless another form is requested; nothing if nothing was scored.

    Without `is_complete` there is no total, as files are missing.
    """
    total = PerplexityResult.total(score.result for score in scores)
    macro = MacroAverage.from_results(score.result for score in scores)
    if not total.tokens:
        return
    warn_of_lost_text(total)
    if output.per_token:
        print_note(describe_conditions(conditions, total))
    elif output.as_json:
        files = [{"file": score.name, **_figures(score.result)} for score in scores]
        totals = {"total": _figures(total), "macro": dataclasses.asdict(macro)} if is_complete else {}
        print(format_json_line({"files": files, **totals, **conditions}))
    elif output.as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("file", *FIGURES))
        for name, result in [*((score.name, score.result) for score in scores), *[("total", total)] * is_complete]:
            writer.writerow((escape_for_stream(name), *_figures(result).values()))
        print_note(describe_conditions(conditions, total))
    else:
        _print_table(scores, total, macro if is_complete else None, conditions)


def refuse_no_tokens(scores: Sequence[FileScore]) -> None:
    """Raise InputError if no token was scored."""
    if not any(score.result.tokens for score in scores):
        unscored = sum(score.result.unscored for score in scores)
        reason = "only first tokens, which nothing predicts" if unscored else "there is no text"
        raise InputError(f"{', '.join(score.name for score in scores)}: nothing to score: {reason}")


def _figures(result: PerplexityResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in FIGURES}


def _print_table(
    scores: Sequence[FileScore], total: PerplexityResult, macro: MacroAverage | None, conditions: dict[str, Any]
) -> None:
    """Print a row per file, and for several files their total (micro-average) and mean (macro-average)."""
    rows = [_row(score.name, score.result) for score in scores]
    if len(scores) > 1 and macro is not None:
        has_words = all(shown_word_perplexity(score.result) is not None for score in scores if score.result.bytes)
        per_word = macro.word_perplexity if has_words else None
        means = (macro.perplexity, per_word, macro.bits_per_byte, macro.standard_error)
        counts = [format_value(None, 0)] * 3
        rows += [_row("total", total), ["mean", *counts, *map(format_value, means, (3, 3, 4, 4))]]
    print_table(COLUMNS, rows)
    print_paragraph(describe_conditions(conditions, total))


def _row(name: str, result: PerplexityResult) -> list[str]:
    counts = [f"{count:,}" for count in (result.tokens, result.words, result.bytes)]
    figures = (result.perplexity, shown_word_perplexity(result), result.bits_per_byte, result.standard_error)
    return [name, *counts, *map(format_value, figures, (3, 3, 4, 4))]


def shown_word_perplexity(result: PerplexityResult) -> float | None:
    """Return the word perplexity; None for text that isn't divided into words by spaces, such as Chinese."""
    return result.word_perplexity if result.bytes <= _MAX_WORD_BYTES * result.words else None
