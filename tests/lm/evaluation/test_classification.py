"""Classification metrics, against their definitions counted text by text and values computed by hand."""

import random

import pytest

from lm.evaluation.classification import ClassificationScores, wilson_interval

EXPECTED = ["cat", "dog", "dog", "cat", "owl", "owl"]
PREDICTED = ["cat", "dog", "cat", "cat", "dog", "owl"]


def test_a_case_by_hand():
    scores = ClassificationScores.from_predictions(EXPECTED, PREDICTED)
    assert scores.labels == ("cat", "dog", "owl")
    assert scores.confusion.tolist() == [[2, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert (scores.examples, scores.correct, scores.accuracy) == (6, 4, 4 / 6)
    cat, dog, owl = scores.by_label
    assert (cat.precision, cat.recall, cat.support, cat.predicted) == (2 / 3, 1.0, 2, 3)
    assert (dog.precision, dog.recall, dog.support, dog.predicted) == (1 / 2, 1 / 2, 2, 2)
    assert (owl.precision, owl.recall, owl.support, owl.predicted) == (1.0, 1 / 2, 2, 1)
    assert [each.f1 for each in scores.by_label] == pytest.approx([4 / 5, 1 / 2, 2 / 3])
    assert scores.macro_f1 == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)
    assert scores.majority_accuracy == 2 / 6


def harmonic_mean(first: float, second: float) -> float:
    return 2 * first * second / (first + second) if first + second else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_the_definitions(seed):
    """As scikit-learn's: precision TP/(TP+FP), recall TP/(TP+FN), F1 their harmonic mean, macro over labels seen."""
    draw = random.Random(seed)
    expected = draw.choices("abcd", weights=[9, 3, 1, 1], k=200)
    predicted = [label if draw.random() < 0.6 else draw.choice("abce") for label in expected]
    scores, f1s = ClassificationScores.from_predictions(expected, predicted), []
    pairs = list(zip(expected, predicted, strict=True))
    for each in scores.by_label:
        hits = sum(one == other == each.label for one, other in pairs)
        false_positives = sum(one != each.label == other for one, other in pairs)
        false_negatives = sum(one == each.label != other for one, other in pairs)
        precision = hits / (hits + false_positives) if hits + false_positives else None
        recall = hits / (hits + false_negatives) if hits + false_negatives else None
        f1s.append(harmonic_mean(precision or 0.0, recall or 0.0))
        assert (each.precision, each.recall) == (precision, recall)
        assert (each.support, each.predicted) == (expected.count(each.label), predicted.count(each.label))
        assert each.f1 == pytest.approx(f1s[-1])
    assert scores.labels == tuple("abcde")
    assert scores.macro_f1 == pytest.approx(sum(f1s) / 5)
    assert scores.accuracy == sum(one == other for one, other in pairs) / 200
    assert (scores.majority.label, scores.majority_accuracy) == ("a", expected.count("a") / 200)
    for row, one in enumerate(scores.labels):
        for column, other in enumerate(scores.labels):
            assert scores.confusion[row, column] == pairs.count((one, other))


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (8, 10, (0.4902, 0.9433)), (81, 263, (0.2553, 0.3662))],
)
def test_wilson_intervals_of_published_tables(successes, trials, interval):
    """The last is Newcombe's example (1998, Statistics in Medicine 17, table I, method 3)."""
    assert wilson_interval(successes, trials) == pytest.approx(interval, abs=5e-5)
