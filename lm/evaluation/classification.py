"""Classification metrics: accuracy with a confidence interval, precision, recall and F1 by label, confusion matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lm.data.bucketing import batched
from lm.decoding.classifier import Classifier
from lm.errors import InputError
from lm.text.records import Record

CONFIDENCE = 0.95
_EXAMPLES_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of one label.

    Attributes:
        precision: fraction of the texts predicted to have it that do; None if there are none.
        recall: fraction of the texts that have it that are predicted to; None if there are none.
        f1: harmonic mean of the two; 0 where one is 0 or None.
        support: texts that have it.
        predicted: texts predicted to have it.
    """

    label: str
    precision: float | None
    recall: float | None
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True)
class ClassificationScores:
    """How well labels are predicted, as counted in a confusion matrix.

    Attributes:
        labels: all that a text has or is predicted to have, in alphabetical order.
        confusion: (labels, labels) texts by the label that they have (row) and the predicted one (column).
        unknown: labels of texts that the model can't predict, with their texts; they count as wrong.
    """

    labels: tuple[str, ...]
    confusion: NDArray[np.int64]
    unknown: dict[str, int]

    @classmethod
    def from_predictions(
        cls, expected: Sequence[str], predicted: Sequence[str], *, known: Collection[str] | None = None
    ) -> ClassificationScores:
        """Count predictions."""
        labels = tuple(sorted({*expected, *predicted}))
        number = {label: index for index, label in enumerate(labels)}
        confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
        for (label, guess), count in Counter(zip(expected, predicted, strict=True)).items():
            confusion[number[label], number[guess]] = count
        counts = Counter(expected)
        unknown = {} if known is None else {label: counts[label] for label in sorted({*expected} - {*known})}
        return cls(labels, confusion, unknown)

    @property
    def examples(self) -> int:
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """Return the fraction of correct predictions; NaN without texts."""
        return self.correct / self.examples if self.examples else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.correct, self.examples)

    @cached_property
    def by_label(self) -> tuple[LabelScores, ...]:
        """Return the scores of each label, in the order of `labels`."""
        hits = self.confusion.diagonal().tolist()
        support, predicted = (self.confusion.sum(axis=axis).tolist() for axis in (1, 0))
        return tuple(
            LabelScores(
                label,
                precision=hit / n_predicted if n_predicted else None,
                recall=hit / n_true if n_true else None,
                f1=2 * hit / (n_true + n_predicted),
                support=n_true,
                predicted=n_predicted,
            )
            for label, hit, n_true, n_predicted in zip(self.labels, hits, support, predicted, strict=True)
        )

    @property
    def macro_f1(self) -> float:
        """Return the unweighted mean F1 of `labels`; NaN without labels."""
        return math.fsum(scores.f1 for scores in self.by_label) / len(self.labels) if self.labels else math.nan

    @property
    def majority(self) -> LabelScores:
        """Return the most frequent label, the majority baseline."""
        return max(self.by_label, key=lambda scores: scores.support)

    @property
    def majority_accuracy(self) -> float:
        """Return the accuracy of the majority baseline; NaN without texts."""
        return self.majority.support / self.examples if self.examples else math.nan


def wilson_interval(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which is within [0, 1] and accurate for few trials."""
    if not trials:
        return 0.0, 1.0
    z, proportion = NormalDist().inv_cdf((1 + confidence) / 2), successes / trials
    scale = 1 + z * z / trials
    middle = (proportion + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(proportion * (1 - proportion) / trials + z * z / (4 * trials * trials))
    # at both ends one bound is the proportion itself, but for rounding
    return (0.0 if not successes else middle - half), (1.0 if successes == trials else middle + half)


def evaluate_classifier(
    classifier: Classifier,
    examples: Iterable[Record],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> ClassificationScores:
    """Classify the prompts of labelled examples and compare with their labels; `progress` is called with how many."""
    expected, predicted = list[str](), list[str]()
    for chunk in batched(examples, _EXAMPLES_AT_ONCE):
        expected += [example.label for example in chunk]
        for prediction in classifier.classify(example.parts[0].text for example in chunk):
            predicted.append(prediction.label)
            progress(len(predicted))
    if not expected:
        raise InputError("there are no labelled examples to score")
    return ClassificationScores.from_predictions(expected, predicted, known=classifier.labels)
