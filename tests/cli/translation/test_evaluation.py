"""A verdict says no more than a test allows."""

from __future__ import annotations

import json

import pytest

from cli.translation.evaluation import print_scores, print_scores_json, verdict
from lm.evaluation.translation_scores import SystemComparison, TranslationScore

BLEU = TranslationScore("BLEU", 30.0, mean=30.1, half_width=1.5, signature="nrefs:1")
NAMES = ("ours", "theirs")


def comparison(difference: float, p_value: float | None) -> SystemComparison:
    other = TranslationScore("BLEU", 30.0 - difference, mean=None, half_width=None, signature="nrefs:1")
    return SystemComparison(BLEU, other, p_value)


@pytest.mark.parametrize(
    ("difference", "p_value", "expected"),
    [
        (2.0, 0.01, "ours is better than theirs by 2.00 BLEU (p = 0.010)"),
        (-2.0, 0.01, "theirs is better than ours by 2.00 BLEU (p = 0.010)"),
        (2.0, 0.05, "no clear difference: ours is ahead of theirs by 2.00 BLEU (p = 0.050)"),
        (2.0, None, "ours is ahead of theirs by 2.00 BLEU; whether by chance is not tested"),
        (0.0, 1.0, "the two do not differ in BLEU"),
    ],
)
def test_a_verdict(difference, p_value, expected):
    assert verdict(comparison(difference, p_value), NAMES) == expected


def test_the_table_and_json_have_the_same_figures(capsys):
    print_scores([BLEU], name="ours", lines=12, exact=3)
    table = capsys.readouterr().out
    assert "30.00" in table
    assert "30.10 ± 1.50" in table
    assert table.splitlines()[-1] == "BLEU|nrefs:1"
    print_scores_json([BLEU], name="ours", lines=12, exact=3)
    report = json.loads(capsys.readouterr().out)
    assert report["scores"]["BLEU"] == {"value": 30.0, "signature": "nrefs:1", "mean": 30.1, "half_width": 1.5}
    assert (report["system"], report["lines"], report["exact"]) == ("ours", 12, 3)
