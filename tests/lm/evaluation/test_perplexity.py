"""Sums over scored tokens: metrics, the difference of two models, and surprisal by token, word and character."""

import math
import statistics

import numpy as np
import pytest

from lm.evaluation.perplexity import (
    PairedDifference,
    PerplexityResult,
    compare_models,
    iterate_tokens,
    iterate_words,
    merge_into_spans,
)
from lm.evaluation.scoring import Scored
from lm.tokenizer.offsets import RoundTripLoss
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model, score_files, train_tokenizer

TEXTS = (TEXT * 3, "", f"the owl\n{SEPARATOR}\n" + TEXT * 2, "ran")
FAMILY, FLAGS, SYLLABLE = "👩‍👩‍👧", "🇰🇷🇩🇪", "\u1112\u1161\u11ab"


def segment(text, ends, nats, **place) -> Scored:
    fields = {"file": 0, "document": 0, "starts": True, "words": 0, "loss": RoundTripLoss(), **place}
    return Scored(
        text=text,
        tokens=np.arange(len(ends)),
        ends=np.array(ends, dtype=np.int64),
        nats=np.array(nats, float),
        **fields,
    )


def test_metrics_follow_from_the_sums():
    nats = [0.5, 2.0, 3.5, 1.25]
    result = PerplexityResult(tokens=4, words=2, bytes=10, nats=7.25, squares=sum(value**2 for value in nats))
    assert result.perplexity == pytest.approx(math.exp(7.25 / 4))
    assert result.word_perplexity == pytest.approx(math.exp(7.25 / 2))
    assert result.bits_per_byte == pytest.approx(7.25 / math.log(2) / 10)
    error = statistics.stdev(nats) / math.sqrt(4)
    assert result.standard_error == pytest.approx(error)
    assert result.bits_per_byte_error == pytest.approx(result.bits_per_byte * error / statistics.mean(nats))
    assert PerplexityResult(tokens=5, words=1, nats=1e4).word_perplexity is None  # beyond the greatest float


def scored(tmp_path, tokenizer, *, seed=4, **sizes):
    for index, text in enumerate(TEXTS):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    return score_files(make_model(seed=seed), tokenizer, tmp_path, **{"context": 16, "stride": 8, **sizes})


def by_hand(sides, file):
    """Bytes, and bits of each model, of the text between common token ends: straight from the definition."""
    rows, columns = [], []
    for side in sides:
        own, size, ends = [some for some in side if some.file == file], 0, [np.zeros(0)]
        for some in own:
            ends.append(size + some.ends)
            size += len(some.text.encode())
        columns.append((np.concatenate(ends), np.concatenate([np.zeros(0), *(some.nats for some in own)])))
    cuts = sorted(set(columns[0][0].tolist()) & set(columns[1][0].tolist()))
    for start, end in zip([0, *cuts[:-1]], cuts, strict=False):
        bits = [nats[(ends > start) & (ends <= end)].sum() / math.log(2) for ends, nats in columns]
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
def test_the_difference_is_that_of_numpy(tmp_path, other):
    sides = scored(tmp_path, BPE), scored(tmp_path, other, seed=9, context=20, stride=3, batch_size=2)
    found, everything = compare_models(*sides, files=4, block_bytes=64), []
    for file, own in enumerate(found):
        rows, difference = by_hand(sides, file), PairedDifference.of_blocks(own)
        blocks = blocks_by_hand(rows, 64)
        everything.append(blocks)
        size, a, b = blocks.sum(axis=0)
        assert (difference.segments, difference.blocks, difference.bytes) == (len(rows), len(blocks), size)
        expected = [a / size, (a - b) / size] if rows else [None, None]
        assert [difference.first_bits_per_byte, difference.difference] == pytest.approx(expected)
    blocks, total = np.concatenate(everything), PairedDifference.of_blocks(np.concatenate(found))
    d, n = (
        blocks[:, 1] - blocks[:, 2],
        blocks[:, 0],
    )  # the delta method, from the covariance of a block's bits and bytes
    ratio = d.sum() / n.sum()
    gradient = np.array([1 / n.mean(), -ratio / n.mean()])
    variance = gradient @ np.cov(d, n) @ gradient / len(n)
    assert total.standard_error == pytest.approx(math.sqrt(variance))
    assert total.z == pytest.approx(ratio / math.sqrt(variance))


def test_tokens_that_share_an_end_stay_together():
    (found,) = compare_models(
        [segment("abcd", [1, 1, 4], [1, 2, 4])], [segment("abcd", [1, 3, 4], [8, 16, 32])], files=1, block_bytes=1
    )
    assert found.tolist() == [pytest.approx([1, 1, 3 / math.log(2), 8 / math.log(2)]),
                              pytest.approx([1, 3, 4 / math.log(2), 48 / math.log(2)])]  # fmt: skip


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_tokens_and_words_are_found_in_the_file_by_their_offsets(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.tokenizer.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 300})
    inside = {(0, 0): TEXT * 5, (1, 0): "the owl\n", (1, 1): "ran"}
    (tmp_path / "0.txt").write_text(TEXT * 5)
    (tmp_path / "1.txt").write_text(f"the owl\n{SEPARATOR}\nran")
    found = score_files(make_model(), tokenizer, tmp_path, context=16, stride=8, batch_size=3)
    tokens, words = (list(iterate(found, [0, 1])) for iterate in (iterate_tokens, iterate_words))
    spans = list(merge_into_spans(found))
    for (file, document), text in inside.items():
        own, of_words = (
            [e for e in each if (e["file"], e["document"]) == (file, document)] for each in (tokens, words)
        )
        assert [token["index"] for token in own] == list(range(len(own)))
        assert [token["token"] for token in own] == tokenizer.encode(text)
        assert [word["text"] for word in of_words] == text.split()
        assert [word["index"] for word in of_words] == list(range(len(of_words)))
        for each in (*own, *of_words):
            data = text.encode()[each["offset"] : each["offset"] + each["bytes"]]
            assert each["text"] == data.decode(errors="replace")
        assert own[0]["nats"] is None if tokenizer is CHAR else own[0]["nats"] > 0
        assert "".join(span.text for span in spans if (span.file, span.document) == (file, document)) == text
        assert sum(word["tokens"] for word in of_words) == len(own)
        bits = sum(word["bits"] or 0 for word in of_words[1:])
        skipped = of_words[0]["tokens"]
        assert bits == pytest.approx(sum(token["nats"] for token in own[skipped:]) / np.log(2))


@pytest.mark.parametrize(
    ("text", "ends", "words"),
    [
        ("a bc  d", [1, 4, 7], {"a": 1, "bc": 2, "d": 4}),
        ("a bc  d", [2, 4, 7], {"a": 1, "bc": 2, "d": 4}),
        ("a bc  d", [4, 6, 7], {"a bc": 1, "d": 6}),
        ("a bc  ", [1, 4, 6], {"a": 1, "bc": 6}),
        ("   ", [1, 2, 3], {"": 7}),
    ],
)
def test_white_space_belongs_to_the_next_word_and_the_last_to_the_last(text, ends, words):
    found = iterate_words([segment(text, ends, np.array([1, 2, 4]) * np.log(2))], ["file"])
    assert {word["text"]: word["bits"] for word in found} == pytest.approx(words)


@pytest.mark.parametrize(
    "character", ["a", "é", "한", "🦉", FAMILY, FLAGS, "👍🏽", "e\u0301", SYLLABLE, "\r\n", "❤️", "1️⃣"]
)
def test_what_is_drawn_as_one_is_one_span(character):
    text, size = f"x{character}y", len(character.encode())
    parts = merge_into_spans([segment(text, range(1, size + 3), [math.log(2)] * (size + 2))])
    assert [(part.text, part.tokens, part.bits) for part in parts] == [
        ("x", 1, 1.0), (character, size, pytest.approx(size)), ("y", 1, 1.0)
    ]  # fmt: skip
