"""The report of a classifier: every number of the page, and the warnings at their limits."""

import json

import pytest

from cli import classification_report
from lm.evaluation.classification import ClassificationScores

REPORT = """\
accuracy 62.5% (95% interval 30.6% to 86.3%): 5 of 8 held-out examples by runs/a
majority baseline 50.0%: always 'joy'
macro F1 0.444

label  precision  recall     F1  support
anger          –   0.000  0.000        1
fear       0.667   0.667  0.667        3
joy        0.600   0.750  0.667        4

confusion matrix: a row for each label, a column for each prediction
       anger  fear  joy
anger      0     0    1
fear       0     2    1
joy        0     1    3
"""

EXPECTED = ["joy", "joy", "joy", "joy", "fear", "fear", "fear", "anger"]
PREDICTED = ["joy", "joy", "joy", "fear", "fear", "fear", "joy", "joy"]


def test_the_page_of_scores(capsys):
    scores = ClassificationScores.from_predictions(EXPECTED, PREDICTED)
    classification_report.print_report(scores, run="runs/a", is_held_out=True)
    assert capsys.readouterr().out == REPORT
    classification_report.print_report(scores, run="runs/a")
    assert "): 5 of 8 examples by runs/a\n" in capsys.readouterr().out


def test_json_has_the_same_unrounded(capsys):
    scores = ClassificationScores.from_predictions(EXPECTED, PREDICTED, known=["joy", "fear"])
    classification_report.print_json(scores, run="runs/a")
    report = json.loads(capsys.readouterr().out)
    low, high = scores.interval
    assert report["interval"] == {"low": low, "high": high, "confidence": 0.95, "method": "wilson"}
    assert (report["accuracy"], report["macro_f1"]) == (5 / 8, pytest.approx(4 / 9))
    assert report["majority"] == {"label": "joy", "accuracy": 0.5}
    assert report["confusion"] == {"labels": ["anger", "fear", "joy"], "matrix": [[0, 0, 1], [0, 2, 1], [0, 1, 3]]}
    assert report["unknown"] == {"anger": 1}
    assert report["labels"][1] == {"label": "fear", "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3,
                                   "predicted": 3}  # fmt: skip


def test_the_matrix_of_more_than_twelve_labels_is_a_list_of_the_twenty_most_frequent_confusions(capsys):
    def confusions(number: int) -> list[str]:
        """Of labels 0, 1, …: each is right once, and taken for the next one as often as it says."""
        names = [f"{index:02}" for index in range(number)]
        expected = [name for index, name in enumerate(names) for _ in range(index + 1)]
        predicted = [guess for index, name in enumerate(names)
                     for guess in (name, *[names[(index + 1) % number]] * index)]  # fmt: skip
        classification_report.print_report(ClassificationScores.from_predictions(expected, predicted), run="a")
        return capsys.readouterr().out.splitlines()[6 + number :]

    title, *rows = confusions(12)
    assert title.startswith("confusion matrix")
    assert len(rows) == 13
    title, heading, *rows = confusions(13)
    assert title == "most frequent confusions, of 13 labels (--json has the whole matrix)"
    assert heading.split() == ["label", "predicted", "count"]
    assert [row.split() for row in rows] == [[f"{n:02}", f"{(n + 1) % 13:02}", str(n)] for n in range(12, 0, -1)]
    assert [row.split()[-1] for row in confusions(22)[2:]] == [str(n) for n in range(21, 1, -1)]


@pytest.mark.parametrize("right", [60, 41, 10])
def test_an_accuracy_is_not_judged(capsys, right):
    expected = ["a", "b"] * 50
    predicted = [label if index < right else {"a": "b", "b": "a"}[label] for index, label in enumerate(expected)]
    classification_report.warn(ClassificationScores.from_predictions(expected, predicted))
    assert capsys.readouterr().err == ""


def test_five_labels_of_each_warning_are_named(capsys):
    known = [f"k{index}" for index in range(6)]
    expected = [*known, *(f"u{index}" for index in range(5)), "u0"]
    scores = ClassificationScores.from_predictions([*expected, "z"], ["z"] * 13, known=[*known, "z"])
    classification_report.warn(scores)
    unknown, never, *_ = capsys.readouterr().err.splitlines()
    assert unknown == ("warning unknown to this model: 'u0', 'u1', 'u2', 'u3', 'u4'; 6 texts with these labels count "
                       "as wrong")  # fmt: skip
    assert never == "warning never predicted: 'k0', 'k1', 'k2', 'k3', 'k4', …"
