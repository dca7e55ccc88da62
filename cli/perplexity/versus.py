"""Reports of `lm perplexity RUN … --versus RUN2`: which of two models predicts files better, and how certainly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.console.escapes import json_line
from cli.console.messages import paragraph
from cli.console.tables import table
from lm.evaluation.perplexity_comparison import Difference
from lm.text.files import TextFile

COLUMNS = ("file", "bytes", "bits/byte", "versus", "difference", "std error", "z")

_CLEAR = 2  # standard errors: a difference that chance makes in one case of twenty


def print_json(
    files: Sequence[TextFile], differences: Sequence[Difference], total: Difference, models: Sequence[dict[str, Any]]
) -> None:
    """Print one object: `files`, `total`, and how each of the two models scored them."""
    pairs = zip(files, differences, strict=True)
    report = {
        "files": [{"file": file.name, **_figures(difference)} for file, difference in pairs],
        "total": _figures(total),
        "unit": "byte",
        "first": models[0],
        "second": models[1],
    }
    print(json_line(report))


def _figures(difference: Difference) -> dict[str, Any]:
    first, second = difference.bits_per_byte or (None, None)
    return {
        "bytes": difference.bytes,
        "segments": difference.segments,
        "blocks": difference.blocks,
        "first_bits_per_byte": first,
        "second_bits_per_byte": second,
        "difference": difference.difference,
        "standard_error": difference.standard_error,
        "z": difference.z,
    }


def print_table(
    files: Sequence[TextFile],
    differences: Sequence[Difference],
    total: Difference,
    models: Sequence[dict[str, Any]],
    runs: tuple[Path, Path],
) -> None:
    """Print a row for each file and the total, how they were scored, and the verdict."""
    rows = [_row(file.name, difference) for file, difference in zip(files, differences, strict=True)]
    table(COLUMNS, [*rows, _row("total", total)] if len(rows) > 1 else rows)
    how = "; ".join(
        f"{run}: context {model['context']}, stride {model['stride']}" for run, model in zip(runs, models, strict=True)
    )
    paragraph(f"bits per byte of the same text; {total.segments:,} segments in {total.blocks:,} blocks; {how}")
    paragraph(verdict(total, runs))


def _row(name: str, difference: Difference) -> list[str]:
    figures = (*(difference.bits_per_byte or (None, None)), difference.difference, difference.standard_error)
    z = _number(difference.z, 1)
    return [name, f"{difference.bytes:,}", *(_number(value, 4) for value in figures), z]


def _number(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"


def verdict(total: Difference, runs: tuple[Path, Path]) -> str:
    """The conclusion from a difference, in a sentence."""
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
