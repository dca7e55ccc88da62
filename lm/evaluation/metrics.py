"""Metrics of `lm evaluate`: accuracy, F1, confusion; BLEU, chrF and TER by sacreBLEU; n-gram baselines of perplexity.

Source: Wilson 1927 (interval of a proportion); Post 2018 (sacreBLEU); Papineni et al. 2002 (BLEU); Popović 2015 (chrF);
Snover et al. 2006 (TER); Koehn 2004 (bootstrap resampling); Kneser & Ney 1995 (n-grams), with the discount
n1 / (n1 + 2 n2) of Ney, Essen & Kneser 1994.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from lm.config.inference import ScoringConfig
from lm.corpus import Split
from lm.decoding.classifier import Classifier
from lm.errors import InputError
from lm.text import Record

Lines = Sequence[str]

CONFIDENCE = 0.95
_HAN = re.compile("[\u3400-\u9fff]")
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]")
"""Characters of Chinese; and those of Thai, Lao, Burmese and Khmer, and kana."""
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
    """Compute corpus BLEU in percent (cased) with one reference per line."""
    return BLEU(tokenize=choose_tokenizer(references), force=True).corpus_score(hypotheses, [references]).score


def choose_tokenizer(references: Lines) -> str:
    """Return the tokenizer of BLEU: 13a, but zh for Chinese, and char for others without spaces between words."""
    text = "".join(references)
    han, others = len(_HAN.findall(text)), len(_WITHOUT_SPACES.findall(text))
    return "13a" if 2 * (han + others) <= len(text) else "zh" if han > 9 * others else "char"


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
        "BLEU": BLEU(
            lowercase=config.lowercase, tokenize=config.tokenize or choose_tokenizer(references[0]), force=True
        ),
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


Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_USUAL_DISCOUNT = 0.5  # where no n-gram occurs once, or none twice
_ORDER = 5
_MAX_TOKENS = 1 << 20  # seconds of counting
_MAX_HELD_OUT = 1 << 17


@dataclass(frozen=True)
class _NgramCounts:
    """The distinct n-grams of a training text, numbered.

    Attributes:
        contexts: number of the (n - 1)-gram that each continues.
        first: training position where each first ends.
        train: number of the n-gram that ends at each training token, -1 near the start.
        held_out: the same for held-out tokens, -1 also if not in the training text.
        held_out_contexts: number of the context of each held-out token, likewise.
    """

    contexts: Ids
    times: Floats
    first: Ids
    train: Ids
    held_out: Ids
    held_out_contexts: Ids


def compute_ngram_losses(train: Split, held_out: Split, *, vocab_size: int) -> list[float]:
    """Return the nats per token of models of order 1, 2, … 5 on the beginning of a held-out split."""
    ids = train.read(0, min(len(train), _MAX_TOKENS))
    scored = held_out.read(0, min(len(held_out), _MAX_HELD_OUT))
    surprisals = compute_ngram_surprisals(ids, scored, vocab_size=vocab_size, order=_ORDER)
    return [float(nats.mean()) for nats in surprisals]


def compute_ngram_surprisals(train: Ids, held_out: Ids, *, vocab_size: int, order: int) -> list[Floats]:
    """Compute the surprisal of held-out tokens under n-gram models of a training text.

    Args:
        train: (n,) IDs, n >= 1.
        held_out: (m,) IDs.
        order: of the largest model; each order takes some ten times the memory of the IDs.

    Returns:
        (m,) nats for each order from 1, as far as the training text is long enough.
    """
    lower = np.full(len(held_out), 1 / vocab_size)
    surprisals, counted = [], list(_count_ngrams(train, held_out, vocab_size, order))
    for grams, longer in zip(counted, [*counted[1:], None], strict=True):
        surprisals.append(-np.log(_interpolate(grams, grams.times, lower)))
        if longer is not None:  # a shorter model is asked where the longer fails: it counts what a sequence follows
            followed = np.bincount(grams.train[longer.first], minlength=len(grams.times))
            lower = _interpolate(grams, followed.astype(np.float64), lower)
    return surprisals


def _count_ngrams(train: Ids, held_out: Ids, vocab_size: int, order: int) -> Iterator[_NgramCounts]:
    contexts, held_out_contexts = np.zeros_like(train), np.zeros_like(held_out)
    for _ in range(min(order, len(train))):
        has = np.flatnonzero(contexts >= 0)
        keys, first, numbers, times = np.unique(
            contexts[has] * vocab_size + train[has], return_index=True, return_inverse=True, return_counts=True
        )
        numbered = np.full_like(train, -1)
        numbered[has] = numbers
        held_out_keys = np.where(held_out_contexts >= 0, held_out_contexts * vocab_size + held_out, -1)
        indices = np.searchsorted(keys, held_out_keys).clip(max=len(keys) - 1)
        seen = np.where(keys[indices] == held_out_keys, indices, -1)
        yield _NgramCounts(keys // vocab_size, times.astype(np.float64), has[first], numbered, seen, held_out_contexts)
        contexts, held_out_contexts = _shift(numbered), _shift(seen)


def _shift(ids: Ids) -> Ids:
    """Return the n-gram that ends before each token."""
    return np.concatenate([np.full(min(1, len(ids)), -1), ids[:-1]])


def _interpolate(grams: _NgramCounts, counts: Floats, lower: Floats) -> Floats:
    """Return the probability of each held-out token: discounted counts, and the rest by the lower order."""
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    discount = once / (once + 2 * twice) if once and twice else _USUAL_DISCOUNT
    n_contexts = int(grams.contexts.max()) + 1
    totals = np.bincount(grams.contexts, weights=counts)
    kinds = np.bincount(grams.contexts, weights=counts > 0)
    contexts = grams.held_out_contexts
    known = (contexts >= 0) & (contexts < n_contexts)
    known[known] = totals[contexts[known]] > 0
    total = totals[contexts[known]]
    count = np.where(grams.held_out[known] >= 0, counts[grams.held_out[known]], 0)
    probabilities = lower.copy()
    shared = discount * kinds[contexts[known]] * lower[known]
    probabilities[known] = (np.maximum(count - discount, 0) + shared) / total
    return probabilities
