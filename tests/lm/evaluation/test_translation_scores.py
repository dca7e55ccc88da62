"""Scores of translations agree with sacreBLEU's own front door, and BLEU with its definition."""

import math
import random
from collections import Counter

import pytest
import sacrebleu

from lm.config.evaluation import ScoringConfig
from lm.errors import InputError
from lm.evaluation.translation_scores import check_lines, compute_bleu, count_exact_matches, score_translations

REFERENCES = [
    "Two young men are outside near many bushes.",
    "Several men in hard hats are operating a giant pulley system.",
    "A little girl climbing into a wooden playhouse.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "여우가 숲 속에서 달린다, 그리고 부엉이가 본다.",
    "Two men are at the stove preparing food.",
]  # fmt: skip


def garbled(lines, parallel_map, seed=0):
    """Lines of which a share of the words is replaced."""
    draw = random.Random(seed)
    return [" ".join("x" if draw.random() < parallel_map else word for word in line.split()) for line in lines]


HYPOTHESES = garbled(REFERENCES, 0.15)


def bleu_by_hand(hypotheses, references):
    """Papineni et al. 2002, of words between spaces."""
    matches, totals, written, expected = [0] * 4, [0] * 4, 0, 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = hypothesis.split(), reference.split()
        written, expected = written + len(ours), expected + len(theirs)
        for n in range(1, 5):
            mine = Counter(zip(*(ours[i:] for i in range(n)), strict=False))
            its = Counter(zip(*(theirs[i:] for i in range(n)), strict=False))
            matches[n - 1] += sum((mine & its).values())
            totals[n - 1] += sum(mine.values())
    brevity = min(1.0, math.exp(1 - expected / written))
    return 100 * brevity * math.exp(sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4)


def test_bleu_is_sacrebleus():
    assert compute_bleu(HYPOTHESES, REFERENCES) == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert compute_bleu(REFERENCES, REFERENCES) == pytest.approx(100)


def test_bleu_of_words_between_spaces_in_lower_case_is_its_definition():
    hypotheses = [line.upper() for line in HYPOTHESES]
    config = ScoringConfig(tokenize="none", lowercase=True, resamples=0)
    found = score_translations([hypotheses], [REFERENCES], config)[0][0]
    lower = [[line.lower() for line in lines] for lines in (hypotheses, REFERENCES)]
    assert found.value == pytest.approx(bleu_by_hand(*lower))
    assert "|tok:none|" in found.signature
    assert "case:lc" in found.signature


def test_all_three_scores_and_their_signatures():
    second = garbled(REFERENCES, 0.1, seed=5)
    (found,) = score_translations([HYPOTHESES], [REFERENCES, second])
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


def test_a_better_system_is_told_from_a_worse_one():
    lines = [f"{line} {number}" for number, line in enumerate(REFERENCES * 10)]
    good, bad = garbled(lines, 0.1, seed=1), garbled(lines, 0.4, seed=2)
    alone, worse = (score_translations([system], [lines])[0] for system in (good, bad))
    for first, second in (score_translations([good, bad], [lines]), score_translations([bad, good], [lines])[::-1]):
        assert [score.value for score in first] == [score.value for score in alone]
        assert [score.value for score in second] == [score.value for score in worse]
        tested = first if second[0].p_value is None else second
        assert all(score.p_value < 0.01 for score in tested)
    alike = score_translations([good, garbled(lines, 0.1, seed=3)], [lines], ScoringConfig(resamples=200))[1]
    assert all(score.p_value > 0.05 and "bs:200" in score.signature for score in alike)


def test_a_line_is_exact_if_any_reference_has_it_letter_by_letter():
    assert count_exact_matches(["a b", "c", "D", ""], [["a b", "x", "d", "y"], ["z", "c", "e", ""]]) == 3
    with pytest.raises(InputError, match="2 translations and 1 references"):
        check_lines(["a", "b"], [["a"]])
