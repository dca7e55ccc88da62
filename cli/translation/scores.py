"""Reports of `lm evaluate`: scores of translations with their signatures, and which of two systems is better."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cli.console.escapes import json_line
from cli.console.messages import paragraph
from cli.console.tables import table
from cli.translation.systems import System
from lm.config.evaluation import ScoringConfig
from lm.evaluation import translation_scores
from lm.evaluation.translation_scores import Comparison, Score

_CLEAR = 0.05


def report_scores(system: System, references: Sequence[Sequence[str]], config: ScoringConfig, *, as_json: bool) -> None:
    """Score translations against references, and print the scores."""
    scores = translation_scores.scores(system.lines, references, config)
    exact = translation_scores.exact_matches(system.lines, references)
    report = print_scores_json if as_json else print_scores
    report(scores, name=system.name, lines=len(system.lines), exact=exact)


def report_comparison(
    first: System, second: System, references: Sequence[Sequence[str]], config: ScoringConfig, *, as_json: bool
) -> None:
    """Score the translations of two systems against references, and print how they differ."""
    comparisons = translation_scores.compare(first.lines, second.lines, references, config)
    report = print_comparisons_json if as_json else print_comparisons
    report(comparisons, (first.name, second.name), lines=len(first.lines))


def print_scores(scores: Sequence[Score], *, name: str, lines: int, exact: int) -> None:
    """Print a row for each metric, and what each figure depends on; `exact` lines are the same as a reference."""
    table(
        ("metric", "score", "95% interval"),
        [[score.metric, _number(score.value), _interval(score)] for score in scores],
    )
    paragraph(f"{lines:,} lines of {name}, {exact:,} of them exactly as a reference has it")
    _print_signatures(scores)


def print_comparisons(comparisons: Sequence[Comparison], names: tuple[str, str], *, lines: int) -> None:
    """Print a row for each metric, what each figure depends on, and the verdict."""
    rows = [
        [one.first.metric, _number(one.first.value), _interval(one.first), _number(one.second.value),
         _interval(one.second), f"{one.difference:+.2f}", "–" if one.p_value is None else f"{one.p_value:.3f}"]
        for one in comparisons
    ]  # fmt: skip
    table(("metric", "first", "95% interval", "second", "95% interval", "difference", "p"), rows)
    tested = any(one.first.mean is not None for one in comparisons)
    method = "; p by paired bootstrap resampling" if tested else ""
    paragraph(f"{lines:,} lines; first: {names[0]}, second: {names[1]}{method}")
    _print_signatures([one.first for one in comparisons])
    paragraph(verdict(comparisons[0], names))


def _print_signatures(scores: Sequence[Score]) -> None:
    for score in scores:
        print(f"{score.metric}|{score.signature}")


def verdict(bleu: Comparison, names: tuple[str, str]) -> str:
    """The conclusion from a difference in BLEU, in a sentence."""
    if not bleu.difference:
        return "the two do not differ in BLEU"
    better, worse = names if bleu.difference > 0 else names[::-1]
    if bleu.p_value is None:
        return f"{better} is ahead of {worse} by {abs(bleu.difference):.2f} BLEU; whether by chance is not tested"
    margin = f"{abs(bleu.difference):.2f} BLEU (p = {bleu.p_value:.3f})"
    if bleu.p_value >= _CLEAR:
        return f"no clear difference: {better} is ahead of {worse} by {margin}"
    return f"{better} is better than {worse} by {margin}"


def print_scores_json(scores: Sequence[Score], *, name: str, lines: int, exact: int) -> None:
    """Print one object: `scores` by metric, and what was scored."""
    _print_json({"system": name, "lines": lines, "exact": exact, "scores": _by_metric(scores)})


def print_comparisons_json(comparisons: Sequence[Comparison], names: tuple[str, str], *, lines: int) -> None:
    """Print one object: `first` and `second`, each with its scores, and `difference` and `p_value` by metric."""
    _print_json({
        "lines": lines,
        "first": {"system": names[0], "scores": _by_metric([one.first for one in comparisons])},
        "second": {"system": names[1], "scores": _by_metric([one.second for one in comparisons])},
        "difference": {one.first.metric: one.difference for one in comparisons},
        "p_value": {one.first.metric: one.p_value for one in comparisons},
    })  # fmt: skip


def _print_json(report: dict[str, Any]) -> None:
    print(json_line(report))


def _by_metric(scores: Sequence[Score]) -> dict[str, dict[str, Any]]:
    figures = {score.metric: dataclasses.asdict(score) for score in scores}
    for score in scores:
        del figures[score.metric]["metric"]
    return figures


def _number(value: float) -> str:
    return f"{value:.2f}"


def _interval(score: Score) -> str:
    if score.mean is None or score.half_width is None:
        return "–"
    return f"{score.mean:.2f} ± {score.half_width:.2f}"
