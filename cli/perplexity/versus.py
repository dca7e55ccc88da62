"""Reports of `lm perplexity RUN … --versus RUN2`: which model predicts files better, and with what certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.console.escapes import format_json_line
from cli.console.messages import print_paragraph
from cli.console.tables import print_table
from cli.perplexity.report import describe_lost_text
from lm.evaluation.perplexity import PerplexityResult
from lm.evaluation.perplexity_comparison import PairedDifference
from lm.text.text_file import TextFile

COLUMNS = ("file", "bytes", "bits/byte", "versus", "difference", "std error", "z")

_NO_VERDICT = "no verdict: text that a tokenizer loses costs no bits, so the two models predicted different texts"
_CLEAR = 2  # standard errors: a difference that chance makes in one case of twenty


@dataclass(frozen=True)
class ComparedRuns:
    """Two runs that scored the same text, and what their tokenizers lose.

    Attributes:
        runs: the two.
        results: the totals of each.
        is_same_tokenizer: whether both have the same tokenizer, and so lose the same.
    """

    runs: tuple[Path, Path]
    results: tuple[PerplexityResult, PerplexityResult]
    is_same_tokenizer: bool

    @property
    def is_comparable(self) -> bool:
        """Return whether both predicted the same text."""
        return self.is_same_tokenizer or not any(result.loses_text for result in self.results)

    @property
    def losses(self) -> str:
        """Describe what each of the two loses, in a sentence."""
        pairs = zip(self.runs, self.results, strict=True)
        return "; ".join(f"{run}: {describe_lost_text(result)}" for run, result in pairs if result.loses_text)


def print_json(
    files: Sequence[TextFile],
    differences: Sequence[PairedDifference],
    total: PairedDifference,
    models: Sequence[dict[str, Any]],
    compared: ComparedRuns,
) -> None:
    """Print one object: `files`, `total`, and how each model scored them."""
    pairs, fair = zip(files, differences, strict=True), compared.is_comparable
    first, second = (
        {**model, "unknown_tokens": result.unknown_tokens, "lost_bytes": result.lost_bytes}
        for model, result in zip(models, compared.results, strict=True)
    )
    report = {
        "files": [{"file": file.name, **_figures(difference, is_comparable=fair)} for file, difference in pairs],
        "total": _figures(total, is_comparable=fair),
        "unit": "byte",
        "comparable": fair,
        "first": first,
        "second": second,
    }
    print(format_json_line(report))


def _figures(difference: PairedDifference, *, is_comparable: bool) -> dict[str, Any]:
    first, second = difference.bits_per_byte or (None, None)
    return {
        "bytes": difference.bytes,
        "segments": difference.segments,
        "blocks": difference.blocks,
        "first_bits_per_byte": first,
        "second_bits_per_byte": second,
        "difference": difference.difference,
        "standard_error": difference.standard_error,
        "z": difference.z if is_comparable else None,
    }


def print_comparison_table(
    files: Sequence[TextFile],
    differences: Sequence[PairedDifference],
    total: PairedDifference,
    models: Sequence[dict[str, Any]],
    compared: ComparedRuns,
) -> None:
    """Print a row per file and the total, how they were scored, and the verdict."""
    runs, fair = compared.runs, compared.is_comparable
    rows = [
        _row(file.name, difference, is_comparable=fair) for file, difference in zip(files, differences, strict=True)
    ]
    print_table(COLUMNS, [*rows, _row("total", total, is_comparable=fair)] if len(rows) > 1 else rows)
    notes = "; ".join(
        f"{run}: context {model['context']}, stride {model['stride']}" for run, model in zip(runs, models, strict=True)
    )
    print_paragraph(f"bits per byte of the same text; {total.segments:,} segments in {total.blocks:,} blocks; {notes}")
    if compared.losses:
        print_paragraph(f"not all of the text is scored: {compared.losses}")
    print_paragraph(verdict(total, runs) if fair else _NO_VERDICT)


def _row(name: str, difference: PairedDifference, *, is_comparable: bool) -> list[str]:
    figures = (*(difference.bits_per_byte or (None, None)), difference.difference, difference.standard_error)
    z = _number(difference.z if is_comparable else None, 1)
    return [name, f"{difference.bytes:,}", *(_number(value, 4) for value in figures), z]


def _number(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"


def verdict(total: PairedDifference, runs: tuple[Path, Path]) -> str:
    """Return the conclusion from a difference, in a sentence."""
    if total.difference is None:
        return "there is no text that both score"
    if total.difference == 0:
        return "the two do not differ"
    better, worse = runs if total.difference < 0 else runs[::-1]
    size = f"{abs(total.difference):.4f}"
    if total.standard_error is None or total.z is None:
        return f"{better} is ahead of {worse} by {size} bits per byte; the text is too short to say how surely"
    margin = f"{size} ± {total.standard_error:.4f} bits per byte (z = {abs(total.z):.1f})"
    if abs(total.z) < _CLEAR:
        return f"no clear difference: {better} is ahead of {worse} by {margin}"
    return f"{better} is better than {worse} by {margin}"
