"""Metrics of `lm evaluate`: accuracy, F1 and confusion of classifiers; BLEU, chrF and TER of translations by sacreBLEU.

Source: Wilson 1927 (interval of a proportion); Post 2018 (sacreBLEU); Papineni et al. 2002 (BLEU); Popović 2015 (chrF);
Snover et al. 2006 (TER); Koehn 2004 (bootstrap resampling).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from lm.config.inference import ScoringConfig
from lm.decoding.classifier import Classifier
from lm.errors import InputError
from lm.text.records import Record

Lines = Sequence[str]

CONFIDENCE = 0.95
_MIN_RESAMPLES = 2  # that an interval can be made of


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
        """Count predictions, at least one."""
        labels, counts = sorted({*expected, *predicted}), Counter(expected)
        pairs = Counter(zip(expected, predicted, strict=True))
        confusion = np.array([[pairs[label, guess] for guess in labels] for label in labels])
        unknown = {label: count for label, count in sorted(counts.items()) if known is not None and label not in known}
        return cls(tuple(labels), confusion, unknown)

    @property
    def examples(self) -> int:
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.correct, self.examples)

    @cached_property
    def by_label(self) -> tuple[LabelScores, ...]:
        """Return the scores of each label, in the order of `labels`."""
        hits, support, predicted = (
            counts.tolist() for counts in (self.confusion.diagonal(), self.confusion.sum(1), self.confusion.sum(0))
        )
        return tuple(
            LabelScores(label, hit / guessed if guessed else None, hit / true if true else None,
                        2 * hit / (true + guessed), true, guessed)
            for label, hit, true, guessed in zip(self.labels, hits, support, predicted, strict=True)
        )  # fmt: skip

    @property
    def macro_f1(self) -> float:
        """Return the unweighted mean F1 of `labels`."""
        return math.fsum(scores.f1 for scores in self.by_label) / len(self.labels)

    @property
    def majority(self) -> LabelScores:
        """Return the most frequent label, the majority baseline."""
        return max(self.by_label, key=lambda scores: scores.support)

    @property
    def majority_accuracy(self) -> float:
        """Return the accuracy of the majority baseline."""
        return self.majority.support / self.examples


def wilson_interval(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which is within [0, 1] and accurate for few trials."""
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

    def prompts() -> Iterator[str]:
        for example in examples:
            expected.append(example.label)
            yield example.parts[0].text

    for prediction in classifier.classify(prompts()):
        predicted.append(prediction.label)
        progress(len(predicted))
    if not expected:
        raise InputError("there are no labelled examples to score")
    return ClassificationScores.from_predictions(expected, predicted, known=classifier.labels)


@dataclass(frozen=True)
class TranslationScore:
    """A corpus score.

    Attributes:
        metric: "BLEU", "chrF2" (higher is better) or "TER" (lower is better), each in percent.
        value: of the whole corpus.
        mean: over bootstrap resamples; None without a bootstrap.
        half_width: half of the 95% confidence interval around `mean`; None without a bootstrap.
        signature: sacreBLEU's signature.
        p_value: of the difference to the first system; None for the first, for equal scores, and without a bootstrap.
    """

    metric: str
    value: float
    mean: float | None
    half_width: float | None
    signature: str
    p_value: float | None = None


def compute_bleu(hypotheses: Lines, references: Lines) -> float:
    """Compute corpus BLEU in percent (cased, 13a) with one reference per line."""
    return BLEU(force=True).corpus_score(hypotheses, [references]).score


def score_translations(
    systems: Sequence[Lines], references: Sequence[Lines], config: ScoringConfig
) -> list[list[TranslationScore]]:
    """Compute BLEU, chrF2 and TER of systems, and compare each with the first by paired bootstrap.

    Uses sacreBLEU's paired test and seed, also for a single system: the interval of `corpus_score` fails on corpora so
    small that a resample has no match.

    Args:
        systems: one translation per line.
        references: one or more sets of reference translations, with as many lines.
        config: tokenisation, and number of resamples for confidence intervals.

    Returns:
        The scores of each system.

    Raises:
        InputError: the numbers of lines differ, or there are none.
    """
    for lines, reference in ((lines, reference) for lines in systems for reference in references):
        if not lines or len(lines) != len(reference):
            raise InputError(f"{len(lines):,} translations and {len(reference):,} references cannot be scored")
    metrics: dict[str, Metric] = {
        "BLEU": BLEU(lowercase=config.lowercase, tokenize=config.tokenize, force=True),
        "chrF": CHRF(lowercase=config.lowercase),
        "TER": TER(),
    }
    if config.resamples < _MIN_RESAMPLES:
        plain = [[(metric.corpus_score(lines, references), metric) for metric in metrics.values()] for lines in systems]
        return [
            [TranslationScore(score.name, score.score, None, None, str(metric.get_signature())) for score, metric in of]
            for of in plain
        ]
    named: list[tuple[str, Lines]] = [(str(index), lines) for index, lines in enumerate(systems)]
    signatures, results = PairedTest(named, metrics, references, test_type="bs", n_samples=config.resamples)()
    by_metric = {metric: [each for each in results[metric] if isinstance(each, Result)] for metric in signatures}
    return [
        [_to_score(metric, str(signatures[metric]), of[index], of[0]) for metric, of in by_metric.items()]
        for index in range(len(systems))
    ]


def _to_score(metric: str, signature: str, result: Result, first: Result) -> TranslationScore:
    assert result.mean is not None
    assert result.ci is not None
    p_value = result.p_value if result.score != first.score else None
    return TranslationScore(metric, result.score, float(result.mean), float(result.ci), signature, p_value)
