import math

import numpy as np
import pytest

from lm.evaluation.file_scoring import ScoredSegment
from lm.evaluation.perplexity import BatchScored, measure_perplexity
from lm.evaluation.perplexity_comparison import PairedDifference, align_segments, compare_models
from lm.evaluation.window_scorers import build_window_scorer
from lm.text.find import find_text_files
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model, train_tokenizer
from tests.lm.evaluation.test_surprisal import segment

TEXTS = (TEXT * 3, "", f"the owl\n{SEPARATOR}\n" + TEXT * 2, "ran")


def scored(tmp_path, tokenizer, *, seed=4, batch_size=5, **sizes):
    model = make_model(seed=seed)
    for index, text in enumerate(TEXTS):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    window_scorer = build_window_scorer(model, tokenizer, **{"context": 16, "stride": 8, **sizes})
    sources = find_text_files([str(tmp_path)])
    events = measure_perplexity(window_scorer, tokenizer, sources, batch_size=batch_size)
    return [s for event in events if isinstance(event, BatchScored) for s in event.segments]


def by_hand(first, second, file):
    """Bits of each model, and bytes, of the text between common token ends: straight from the definition."""
    rows = []
    documents_of = {s.piece.document for s in first if s.piece.file == file}
    for document in sorted(documents_of):
        sides = []
        for side in (first, second):
            own = [s for s in side if (s.piece.file, s.piece.document) == (file, document)]
            ends = np.concatenate([s.piece.offset + s.ends for s in own])
            sides.append((ends, np.concatenate([s.nats for s in own]) / math.log(2)))
        cuts = sorted(set(sides[0][0].tolist()) & set(sides[1][0].tolist()))
        for start, end in zip([0, *cuts[:-1]], cuts, strict=True):
            bits = [nats[(ends > start) & (ends <= end)].sum() for ends, nats in sides]
            rows.append((end - start, *bits))
    return [row for row in rows if not math.isnan(row[1] + row[2])]


def blocks_by_hand(rows, least):
    blocks, held = [], []
    for row in rows:
        held.append(row)
        if sum(size for size, _, _ in held) >= least:
            blocks.append(np.sum(held, axis=0))
            held = []
    return np.array([*blocks, *([np.sum(held, axis=0)] if held else [])]).reshape(-1, 3)


@pytest.mark.medium
@pytest.mark.parametrize("other", [BPE, CHAR, train_tokenizer("byte")], ids=["same", "char", "byte"])
@pytest.mark.parametrize("least", [1, 64])
def test_the_difference_is_that_of_numpy(tmp_path, other, least):
    first, second = scored(tmp_path, BPE), scored(tmp_path, other, seed=9, context=20, stride=3, batch_size=2)
    found = compare_models(first, second, files=4, block_bytes=least)
    everything = []
    for file, difference in enumerate(found):
        rows = by_hand(first, second, file)
        blocks = blocks_by_hand(rows, least)
        everything.append(blocks)
        size, a, b = blocks.sum(axis=0)
        assert (difference.segments, difference.blocks, difference.bytes) == (len(rows), len(blocks), size)
        if not rows:
            assert (
                difference.difference is difference.standard_error is difference.z is difference.bits_per_byte is None
            )
            continue
        assert difference.bits_per_byte == pytest.approx((a / size, b / size))
        assert difference.difference == pytest.approx((a - b) / size)
    _check_error(PairedDifference.total(found), np.concatenate(everything))


def _check_error(total, blocks):
    """The delta method, from the covariance of a block's bits and bytes."""
    d, n = blocks[:, 1] - blocks[:, 2], blocks[:, 0]
    ratio = d.sum() / n.sum()
    gradient = np.array([1 / n.mean(), -ratio / n.mean()])
    variance = gradient @ np.cov(d, n) @ gradient / len(n)
    assert total.standard_error == pytest.approx(math.sqrt(variance))
    assert total.z == pytest.approx(ratio / math.sqrt(variance))


def test_text_that_one_model_does_not_score_counts_for_neither(tmp_path):
    total = PairedDifference.total(compare_models(scored(tmp_path, BPE), scored(tmp_path, CHAR), files=4))
    text = sum(len(text.encode()) for text in TEXTS) - len(f"{SEPARATOR}\n")
    first_tokens = 0
    for document in (TEXTS[0], "the owl\n", TEXT, "ran"):
        first_tokens += len(BPE.token_bytes(BPE.encode(document)[0]))
    assert total.bytes == text - first_tokens


def test_tokens_that_share_an_end_stay_together():
    first = segment("abcd", [1, 1, 4], [1, 2, 4])
    second = segment("abcd", [1, 3, 4], [8, 16, 32])
    pairs = list(align_segments([first], [second]))
    assert np.concatenate([p.first for p in pairs]).tolist() == [3, 4]
    assert np.concatenate([p.second for p in pairs]).tolist() == [8, 48]
    assert np.concatenate([p.bytes for p in pairs]).tolist() == [1, 3]


def test_where_the_truth_is_known_it_is_found():
    """Letters drawn from p: a model that knows p is better than one that believes q by KL(p‖q) bits a letter."""
    p, q = np.array([0.5, 0.25, 0.125, 0.125]), np.array([0.25, 0.25, 0.25, 0.25])
    truth = float((p * np.log2(p / q)).sum())
    spread = math.sqrt(float((p * np.log2(p / q) ** 2).sum()) - truth**2)
    rng, scores = np.random.default_rng(0), []
    for _ in range(200):
        letters = rng.choice(4, size=2000, p=p)
        text = "".join("abcd"[letter] for letter in letters)
        single = segment(text, range(1, 2001), -np.log(p[letters]))
        pairs = segment(text, range(2, 2001, 2), -np.log(q[letters]).reshape(-1, 2).sum(axis=1))
        (found,) = compare_models([single], [pairs], files=1, block_bytes=20)
        assert found.blocks == 100
        assert found.standard_error == pytest.approx(spread / math.sqrt(2000), rel=0.35)
        scores.append((found.difference + truth) / found.standard_error)
    assert abs(np.mean(scores)) < 4 / math.sqrt(200)
    assert 0.85 < np.std(scores) < 1.15
    assert 0.9 <= np.mean(np.abs(scores) < 1.96) <= 0.99


def test_tokens_that_end_where_a_segment_of_both_models_does_are_not_lost():
    """Each model's second segment continues with a token that ends where the first segment did."""
    ends, parts = [1, 2, 2, 4], []
    for nats in ([1, 2, 4, 8], [16, 32, 64, 128]):
        piece = segment("abcd", ends, nats).piece
        parts.append(
            [ScoredSegment(piece, 0, np.array(nats[:2], float)), ScoredSegment(piece, 2, np.array(nats[2:], float))]
        )
    pairs = list(align_segments(*parts))
    assert np.concatenate([p.bytes for p in pairs]).tolist() == [1, 1, 2]
    assert np.concatenate([p.first for p in pairs]).tolist() == [1, 6, 8]
    assert np.concatenate([p.second for p in pairs]).tolist() == [16, 96, 128]
