"""Translation metrics by sacreBLEU (`lm evaluate`): BLEU, chrF and TER, with signatures and confidence intervals.

Two systems are compared by paired bootstrap (`--versus`).

Source: Post 2018 (sacreBLEU); Papineni et al. 2002 (BLEU); Popović 2015 (chrF); Snover et al. 2006 (TER); Koehn 2004
(bootstrap resampling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from lm.config.evaluation import ScoringConfig
from lm.errors import InputError

Lines = Sequence[str]

_MIN_RESAMPLES = 2  # that an interval can be made of


@dataclass(frozen=True)
class TranslationScore:
    """A corpus score.

    Attributes:
        metric: "BLEU", "chrF2" (higher is better) or "TER" (lower is better), each in percent.
        value: of the whole corpus.
        mean: over bootstrap resamples; None without a bootstrap.
        half_width: half of the 95% confidence interval around `mean`; None without a bootstrap.
        signature: sacreBLEU's signature.
    """

    metric: str
    value: float
    mean: float | None
    half_width: float | None
    signature: str


@dataclass(frozen=True)
class SystemComparison:
    """Two systems on the same lines.

    Attributes:
        p_value: of the paired bootstrap; None if the outputs are equal, and without a bootstrap.
    """

    first: TranslationScore
    second: TranslationScore
    p_value: float | None

    @property
    def difference(self) -> float:
        """Return the first score minus the second."""
        return self.first.value - self.second.value


def compute_bleu(hypotheses: Lines, references: Lines) -> float:
    """Compute corpus BLEU in percent (cased, 13a) with one reference per line."""
    check_lines(hypotheses, [references])
    return BLEU(force=True).corpus_score(hypotheses, [references]).score


def count_exact_matches(hypotheses: Lines, references: Sequence[Lines]) -> int:
    """Count translations that equal one of their references."""
    check_lines(hypotheses, references)
    return sum(
        hypothesis in line_references for hypothesis, *line_references in zip(hypotheses, *references, strict=True)
    )


def score_translations(
    hypotheses: Lines, references: Sequence[Lines], config: ScoringConfig | None = None
) -> list[TranslationScore]:
    """Compute BLEU, chrF2 and TER of translations.

    Args:
        hypotheses: one translation per line.
        references: one or more sets of reference translations, with as many lines.
        config: tokenisation, and number of resamples for confidence intervals.

    Raises:
        InputError: the numbers of lines differ, or there are none.
    """
    config = config or ScoringConfig()
    check_lines(hypotheses, references)
    if config.resamples < _MIN_RESAMPLES:
        return [_plain_score(metric, hypotheses, references) for metric in _build_metrics(config).values()]
    signatures, results = _bootstrap([hypotheses], references, config)
    return [_score(metric, signature, results[metric][0]) for metric, signature in signatures.items()]


def _plain_score(metric: Metric, hypotheses: Lines, references: Sequence[Lines]) -> TranslationScore:
    score = metric.corpus_score(hypotheses, references)
    return TranslationScore(score.name, score.score, None, None, str(metric.get_signature()))


def compare_systems(
    first: Lines, second: Lines, references: Sequence[Lines], config: ScoringConfig | None = None
) -> list[SystemComparison]:
    """Compute BLEU, chrF2 and TER of two systems, with paired bootstrap resampling.

    Args:
        first: one translation per line.
        second: the other system's.
        references: one or more sets of reference translations, with as many lines.
        config: as for `score_translations`.

    Raises:
        InputError: the numbers of lines differ, or there are none.
    """
    config = config or ScoringConfig()
    for lines in (first, second):
        check_lines(lines, references)
    if config.resamples < _MIN_RESAMPLES:
        first_scores, second_scores = (score_translations(lines, references, config) for lines in (first, second))
        return [SystemComparison(*pair, p_value=None) for pair in zip(first_scores, second_scores, strict=True)]
    signatures, results = _bootstrap([first, second], references, config)
    return [_comparison(metric, signature, *results[metric]) for metric, signature in signatures.items()]


def _bootstrap(
    systems: Sequence[Lines], references: Sequence[Lines], config: ScoringConfig
) -> tuple[dict[str, str], dict[str, list[Result]]]:
    """Return, by metric, the signature and a result per system: the first alone, the others against it.

    Uses sacreBLEU's paired test and seed, also for a single system: the interval of `corpus_score` fails on corpora so
    small that a resample has no match.
    """
    named: list[tuple[str, Lines]] = [(str(index), lines) for index, lines in enumerate(systems)]
    test = PairedTest(named, _build_metrics(config), references, test_type="bs", n_samples=config.resamples)
    signatures, results = test()
    by_metric = {metric: [result for result in results[metric] if isinstance(result, Result)] for metric in signatures}
    return {metric: str(signature) for metric, signature in signatures.items()}, by_metric


def _comparison(metric: str, signature: str, first: Result, second: Result) -> SystemComparison:
    p_value = second.p_value if first.score != second.score else None
    return SystemComparison(_score(metric, signature, first), _score(metric, signature, second), p_value)


def _score(metric: str, signature: str, result: Result) -> TranslationScore:
    assert result.mean is not None
    assert result.ci is not None
    return TranslationScore(metric, result.score, float(result.mean), float(result.ci), signature)


def _build_metrics(config: ScoringConfig) -> Mapping[str, Metric]:
    """Build metrics for a corpus; a metric caches its last references."""
    return {
        "BLEU": BLEU(lowercase=config.lowercase, tokenize=config.tokenize, force=True),
        "chrF": CHRF(lowercase=config.lowercase),
        "TER": TER(),
    }


def check_lines(hypotheses: Lines, references: Sequence[Lines]) -> None:
    """Raise InputError unless there are as many translations as references, and at least one."""
    for lines in references:
        if len(lines) != len(hypotheses):
            raise InputError(
                f"{len(hypotheses):,} translations and {len(lines):,} references: there must be as many of each, "
                "line by line"
            )
    if not hypotheses:
        raise InputError("there are no lines to score")
