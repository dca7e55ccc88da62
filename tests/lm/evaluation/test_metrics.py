"""Metrics agree with their definitions, with published values and with sacreBLEU's own front door."""

import random

import pytest
import sacrebleu

from lm.config.inference import ScoringConfig
from lm.errors import InputError
from lm.evaluation.metrics import ClassificationScores, compute_bleu, score_translations, wilson_interval


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
        precision = hits / predicted.count(each.label) if each.label in predicted else None
        recall = hits / expected.count(each.label) if each.label in expected else None
        f1s.append(2 * precision * recall / (precision + recall) if precision and recall else 0.0)
        assert (each.precision, each.recall, each.f1) == (precision, recall, pytest.approx(f1s[-1]))
        assert (each.support, each.predicted) == (expected.count(each.label), predicted.count(each.label))
    assert scores.macro_f1 == pytest.approx(sum(f1s) / 5)
    assert scores.majority.label == "a"
    assert scores.confusion.tolist() == [[pairs.count((one, other)) for other in "abcde"] for one in "abcde"]


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (8, 10, (0.4902, 0.9433)), (81, 263, (0.2553, 0.3662))],
)
def test_wilson_intervals_of_published_tables(successes, trials, interval):
    """The last is Newcombe's example (1998, Statistics in Medicine 17, table I, method 3)."""
    assert wilson_interval(successes, trials) == pytest.approx(interval, abs=5e-5)


REFERENCES = [
    "Two young men are outside near many bushes.",
    "Several men in hard hats are operating a giant pulley system.",
    "A little girl climbing into a wooden playhouse.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "여우가 숲 속에서 달린다, 그리고 부엉이가 본다.",
    "Two men are at the stove preparing food.",
]  # fmt: skip


def garbled(lines, fraction, seed=0):
    """Lines of which a fraction of the words is replaced."""
    draw = random.Random(seed)
    return [" ".join("x" if draw.random() < fraction else word for word in line.split()) for line in lines]


HYPOTHESES = garbled(REFERENCES, 0.15)


def test_all_three_scores_and_their_signatures():
    second = garbled(REFERENCES, 0.1, seed=5)
    (found,) = score_translations([HYPOTHESES], [REFERENCES, second], ScoringConfig())
    expected = [
        sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES, second]),
        sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES, second]),
        sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES, second]),
    ]
    assert [score.metric for score in found] == ["BLEU", "chrF2", "TER"]
    assert [score.value for score in found] == pytest.approx([score.score for score in expected])
    for score in found:
        assert score.signature.startswith("nrefs:2|bs:1000|seed:12345|")
        assert score.signature.endswith(f"version:{sacrebleu.__version__}")
        assert score.half_width > 0
        assert abs(score.mean - score.value) < score.half_width
    config = ScoringConfig(tokenize="none", lowercase=True, resamples=0)
    (lower,) = score_translations([[line.upper() for line in HYPOTHESES]], [REFERENCES], config)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=True, tokenize="none")
    assert lower[0].value == pytest.approx(expected.score)
    assert "case:lc|eff:no|tok:none" in lower[0].signature
    assert compute_bleu(HYPOTHESES, REFERENCES) == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score


@pytest.mark.parametrize(
    ("reference", "hypothesis", "tokenize"),
    [
        ("今天天气很好，我们去公园。", "今天天气好，我们去公园吧。", "zh"),
        ("今日は天気がいいので公園に行く。", "今日は天気がよいので公園へ行く。", "char"),
    ],
)
def test_characters_are_compared_where_words_have_no_spaces(reference, hypothesis, tokenize):
    expected = sacrebleu.corpus_bleu([hypothesis], [[reference]], tokenize=tokenize, force=True).score
    assert compute_bleu([hypothesis], [reference]) == expected > 20
    ((bleu, *_),) = score_translations([[hypothesis]], [[reference]], ScoringConfig(resamples=0))
    assert bleu.value == expected


def test_a_better_system_is_told_from_a_worse_one():
    lines = [f"{line} {number}" for number, line in enumerate(REFERENCES * 10)]
    good, bad = garbled(lines, 0.1, seed=1), garbled(lines, 0.4, seed=2)
    config = ScoringConfig(resamples=200)
    for pair in ([good, bad], [bad, good]):
        first, second = score_translations(pair, [lines], config)
        assert [[score.value for score in of] for of in (first, second)] == [
            [score.value for score in score_translations([system], [lines], config)[0]] for system in pair
        ]
        assert all(score.p_value < 0.01 for score in second)
    with pytest.raises(InputError, match="2 translations and 1 references"):
        score_translations([["a", "b"]], [["a"]], config)
