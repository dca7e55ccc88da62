"""Classification metrics, against their definitions counted text by text and values computed by hand."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from lm.decoding.classifier import ClassifiedText
from lm.errors import InputError
from lm.evaluation.classification import ClassificationScores, evaluate_classifier, wilson_interval
from lm.text.examples import Example

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


def test_a_label_that_is_never_predicted_has_no_precision_and_an_f1_of_zero():
    owl = ClassificationScores.from_predictions(["owl", "cat"], ["cat", "cat"]).by_label[1]
    assert (owl.precision, owl.recall, owl.f1) == (None, 0.0, 0.0)
    cat = ClassificationScores.from_predictions(["owl"], ["cat"]).by_label[0]
    assert (cat.precision, cat.recall, cat.f1) == (0.0, None, 0.0)


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (8, 10, (0.4902, 0.9433)), (81, 263, (0.2553, 0.3662))],
)
def test_wilson_intervals_of_published_tables(successes, trials, interval):
    """The last is Newcombe's example (1998, Statistics in Medicine 17, table I, method 3)."""
    assert wilson_interval(successes, trials) == pytest.approx(interval, abs=5e-5)


@pytest.mark.parametrize("trials", [1, 7, 100])
def test_a_wilson_bound_is_where_the_score_test_rejects(trials):
    """Each bound p solves |share - p| = z * sqrt(p(1 - p) / n)."""
    for successes in range(trials + 1):
        parallel_map = successes / trials
        for bound in wilson_interval(successes, trials):
            assert abs(parallel_map - bound) == pytest.approx(
                1.959964 * math.sqrt(bound * (1 - bound) / trials), abs=1e-6
            ) or bound in (0.0, 1.0)


def test_the_order_of_texts_makes_no_difference():
    order = np.random.default_rng(1).permutation(len(EXPECTED))
    shuffled = ClassificationScores.from_predictions(
        [EXPECTED[place] for place in order], [PREDICTED[place] for place in order]
    )
    assert shuffled.by_label == ClassificationScores.from_predictions(EXPECTED, PREDICTED).by_label


@dataclass
class First:
    """Predicts the first letter of a text."""

    labels: tuple[str, ...] = ("a", "b")

    def classify(self, texts) -> Iterator[ClassifiedText]:
        return (ClassifiedText(text, {text[0]: 1.0}) for text in texts)


@pytest.mark.parametrize("times", [1, 5000])
def test_labels_that_the_model_does_not_know_are_named_and_count_as_wrong(times):
    examples = [Example("apple", "\na", 1), Example("bean", "b", 2), Example("apricot", "\nc", 3)]
    done: list[int] = []
    scores = evaluate_classifier(First(), examples * times, progress=done.append)
    assert done == list(range(1, 3 * times + 1))
    assert scores.unknown == {"c": times}
    assert (scores.labels, scores.correct, scores.examples) == (("a", "b", "c"), 2 * times, 3 * times)


def test_no_examples_are_an_error():
    with pytest.raises(InputError, match="no labelled examples"):
        evaluate_classifier(First(), [])
