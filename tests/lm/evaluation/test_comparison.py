import math

import numpy as np
import pytest

from lm.evaluation.comparison import PairedDifference, compare_models
from lm.evaluation.scoring import Scored
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model, score_files, train_tokenizer
from tests.lm.evaluation.test_surprisal import segment

TEXTS = (TEXT * 3, "", f"the owl\n{SEPARATOR}\n" + TEXT * 2, "ran")


def scored(tmp_path, tokenizer, *, seed=4, batch_size=5, **sizes):
    for index, text in enumerate(TEXTS):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    sizes = {"context": 16, "stride": 8, "batch_size": batch_size, **sizes}
    return score_files(make_model(seed=seed), tokenizer, tmp_path, **sizes)


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
            assert difference.difference is difference.standard_error is difference.z is None
            continue
        assert difference.first_bits_per_byte == pytest.approx(a / size)
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


def test_tokens_that_share_an_end_stay_together():
    first, second = segment("abcd", [1, 1, 4], [1, 2, 4]), segment("abcd", [1, 3, 4], [8, 16, 32])
    (found,) = compare_models([first], [second], files=1, block_bytes=1)
    assert (found.segments, found.blocks, found.bytes) == (2, 2, 4)
    assert found.products * math.log(2) == pytest.approx((3 - 8) * 1 + (4 - 48) * 3)


def test_tokens_that_end_where_a_segment_of_both_models_does_are_not_lost():
    """Each model's second segment continues with a token that ends where the first segment did."""
    ends, parts = [1, 2, 2, 4], []
    for nats in ([1, 2, 4, 8], [16, 32, 64, 128]):
        piece = segment("abcd", ends, nats).piece
        parts.append([Scored(piece, 0, np.array(nats[:2], float)), Scored(piece, 2, np.array(nats[2:], float))])
    (found,) = compare_models(*parts, files=1, block_bytes=1)
    assert (found.segments, found.bytes) == (3, 4)
    assert found.products * math.log(2) == pytest.approx((1 - 16) * 1 + (6 - 96) * 1 + (8 - 128) * 2)
