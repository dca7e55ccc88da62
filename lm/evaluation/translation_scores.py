"""Translation metrics by sacreBLEU (`lm evaluate`): BLEU, chrF and TER, with signatures and confidence intervals.

Systems are compared with the first by paired bootstrap (`--versus`).

Source: Post 2018 (sacreBLEU); Papineni et al. 2002 (BLEU); Popović 2015 (chrF); Snover et al. 2006 (TER); Koehn 2004
(bootstrap resampling).
"""

from __future__ import annotations

from collections.abc import Sequence
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
    check_lines(hypotheses, [references])
    return BLEU(force=True).corpus_score(hypotheses, [references]).score


def count_exact_matches(hypotheses: Lines, references: Sequence[Lines]) -> int:
    """Count translations that equal one of their references."""
    return sum(hypothesis in of_line for hypothesis, *of_line in zip(hypotheses, *references, strict=True))


def score_translations(
    systems: Sequence[Lines], references: Sequence[Lines], config: ScoringConfig | None = None
) -> list[list[TranslationScore]]:
    """Compute BLEU, chrF2 and TER of systems.

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
    config = config or ScoringConfig()
    for lines in systems:
        check_lines(lines, references)
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
    test = PairedTest(named, metrics, references, test_type="bs", n_samples=config.resamples)
    signatures, results = test()
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


def check_lines(hypotheses: Lines, references: Sequence[Lines]) -> None:
    """Raise InputError unless there are as many translations as references, and at least one."""
    for lines in references:
        if len(lines) != len(hypotheses):
            raise InputError(
                f"{len(hypotheses):,} translations and {len(lines):,} references: line n belongs to line n"
            )
    if not hypotheses:
        raise InputError("there are no lines to score")
