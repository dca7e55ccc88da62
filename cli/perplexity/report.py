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
from lm.checkpoint import LoadedModel
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

COMPLETION_TOKEN, REPLY_TOKEN = "completion token", "assistant token"
"""The unit of scored completions."""


MASKED_TOKEN = "masked token"
"""The unit of a masked model, which has a pseudo-perplexity."""


def scoring_conditions(
    run: Path, loaded: LoadedModel, *, context: int, stride: int, score_every: int = 1
) -> dict[str, Any]:
    """Return how text was scored, and by which model."""
    sizes = {"context": context, "stride": stride}
    if loaded.model.config.is_masked:
        return {"unit": MASKED_TOKEN, **sizes, "score_every": score_every, **_run_facts(run, loaded)}
    start = loaded.tokenizer.start_of_text is not None
    return {"unit": "token", **sizes, "first_token_scored": start, **_run_facts(run, loaded)}


def example_conditions(
    run: Path, loaded: LoadedModel, *, context: int, shortened: int, are_conversations: bool = False
) -> dict[str, Any]:
    """Return how completions or replies were scored, and by which model."""
    return {
        "unit": REPLY_TOKEN if are_conversations else COMPLETION_TOKEN,
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
    if conditions["unit"] == COMPLETION_TOKEN:
        return _describe_examples(conditions, total)
    if conditions["unit"] == REPLY_TOKEN:
        return _describe_conversations(conditions, total)
    if conditions["unit"] == MASKED_TOKEN:
        return _describe_masks(conditions, total)
    start = (
        "conditioned on a document-start token" if conditions["first_token_scored"] else "with an unscored first token"
    )
    return (
        f"perplexity per token ({conditions['tokenizer']['vocab_size']:,} in the vocabulary), "
        f"context {conditions['context']}, stride {conditions['stride']}; "
        f"{format_number_of(total.documents, 'document')}, each {start} "
        f"({total.unscored:,} tokens unscored)"
    )


def _describe_examples(conditions: dict[str, Any], total: PerplexityResult) -> str:
    shortened, vocab_size = conditions["shortened"], conditions["tokenizer"]["vocab_size"]
    return (
        f"perplexity per token of the completions ({vocab_size:,} in the vocabulary), the end "
        f"of each included, after its prompt, as the run is supervised; context {conditions['context']}; "
        f"{format_number_of(total.documents, 'example')}"
        + (f", of which {shortened:,} lost the beginning of the prompt" if shortened else "")
    )


def _describe_conversations(conditions: dict[str, Any], total: PerplexityResult) -> str:
    shortened = conditions["shortened"]
    return (
        f"perplexity per token of the assistant ({conditions['tokenizer']['vocab_size']:,} in the vocabulary), the end "
        f"of each turn included, after all messages before; context {conditions['context']}; "
        f"{format_number_of(total.documents, 'conversation')}"
        + (f", of which {shortened:,} lost their last turns" if shortened else "")
    )


def _describe_masks(conditions: dict[str, Any], total: PerplexityResult) -> str:
    left_out = (
        f"only one in {conditions['score_every']} is scored ({total.unscored:,} are not); "
        if conditions["score_every"] > 1
        else ""
    )
    return (
        f"pseudo-perplexity per token ({conditions['tokenizer']['vocab_size']:,} in the vocabulary): each is masked in "
        f"turn and guessed from both sides, which no perplexity from one side compares with; {left_out}"
        f"context {conditions['context']}, stride {conditions['stride']}; "
        f"{format_number_of(total.documents, 'document')}"
    )


def print_scores(scores: Sequence[FileScore], conditions: dict[str, Any], *, as_json: bool, as_csv: bool) -> None:
    """Print the results on stdout, as a table unless another form is requested."""
    total, macro = (
        PerplexityResult.total(score.result for score in scores),
        MacroAverage.from_results(score.result for score in scores),
    )
    warn_of_lost_text(total)
    if as_json:
        print_json(scores, total, macro, conditions)
    elif as_csv:
        print_csv(scores, total)
        print_note(describe_conditions(conditions, total))
    else:
        print_score_table(scores, total, macro, conditions)


def refuse_no_tokens(scores: Sequence[FileScore]) -> None:
    """Raise InputError if no token was scored."""
    if not any(score.result.tokens for score in scores):
        unscored = sum(score.result.unscored for score in scores)
        reason = "only first tokens, which nothing predicts" if unscored else "there is no text"
        raise InputError(f"{', '.join(score.name for score in scores)}: nothing to score: {reason}")


def print_json(
    scores: Sequence[FileScore], total: PerplexityResult, macro: MacroAverage, conditions: dict[str, Any]
) -> None:
    """Print one object: `files`, `total` (micro-average), `macro` (means over files), and the conditions."""
    files = [{"file": score.name, **_figures(score.result)} for score in scores]
    report = {"files": files, "total": _figures(total), "macro": dataclasses.asdict(macro), **conditions}
    print(format_json_line(report))


def print_csv(scores: Sequence[FileScore], total: PerplexityResult) -> None:
    """Print a header, a line per file, and the total, unrounded; empty where undefined."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("file", *FIGURES))
    for name, result in [*((score.name, score.result) for score in scores), ("total", total)]:
        writer.writerow((escape_for_stream(name), *_figures(result).values()))


def _figures(result: PerplexityResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in FIGURES}


def print_score_table(
    scores: Sequence[FileScore], total: PerplexityResult, macro: MacroAverage, conditions: dict[str, Any]
) -> None:
    """Print a row per file, and for several files their total (micro-average) and mean (macro-average)."""
    rows = [_row(score.name, score.result) for score in scores]
    if len(scores) > 1:
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
