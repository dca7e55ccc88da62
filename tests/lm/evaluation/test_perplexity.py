"""Sums over scored tokens: metrics, the difference of two models, and surprisal by token, word and character."""

import math

import numpy as np
import pytest

from lm.errors import UsageError
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
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model, score_files

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
    result = PerplexityResult(tokens=4, words=2, bytes=10, nats=7.25)
    assert result.perplexity == pytest.approx(math.exp(7.25 / 4))
    assert result.word_perplexity == pytest.approx(math.exp(7.25 / 2))
    assert result.bits_per_byte == pytest.approx(7.25 / math.log(2) / 10)
    assert PerplexityResult(tokens=5, words=1, nats=1e4).word_perplexity is None  # beyond the greatest float


@pytest.mark.parametrize("other", [BPE, CHAR], ids=["same", "char"])
def test_blocks_divide_the_text_that_both_models_score(tmp_path, other):
    texts = (TEXT * 3, "", f"the owl\n{SEPARATOR}\n" + TEXT * 2, "ran")
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    first, second = (
        score_files(make_model(seed=seed), tokenizer, tmp_path, context=16, stride=stride)
        for seed, tokenizer, stride in ((4, BPE, 8), (9, other, 3))
    )
    found = compare_models(first, second, files=4, block_bytes=64)
    total = PairedDifference.of_blocks(np.concatenate(found))
    if other is BPE:
        assert total.bytes == sum(len(text.replace(SEPARATOR + "\n", "").encode()) for text in texts)
        assert total.segments == sum(len(some.tokens) for some in first)
        for side, bits in ((first, total.first_bits_per_byte), (second, total.second_bits_per_byte)):
            assert bits == pytest.approx(sum(some.nats.sum() for some in side) / math.log(2) / total.bytes)
    assert all((blocks[:-1, 1] >= 64).all() for blocks in found)
    assert sum(map(len, found)) > total.bytes / 100
    blocks = np.concatenate(found)
    d, n = (
        blocks[:, 2] - blocks[:, 3],
        blocks[:, 1],
    )  # the delta method, from the covariance of a block's bits and bytes
    ratio = d.sum() / n.sum()
    gradient = np.array([1 / n.mean(), -ratio / n.mean()])
    error = math.sqrt(gradient @ np.cov(d, n) @ gradient / len(n))
    assert (total.difference, total.standard_error, total.z) == pytest.approx((ratio, error, ratio / error))


def test_tokens_that_share_an_end_stay_together():
    (found,) = compare_models(
        [segment("abcd", [1, 1, 4], [1, 2, 4])], [segment("abcd", [1, 3, 4], [8, 16, 32])], files=1, block_bytes=1
    )
    assert found.tolist() == [pytest.approx([1, 1, 3 / math.log(2), 8 / math.log(2)]),
                              pytest.approx([1, 3, 4 / math.log(2), 48 / math.log(2)])]  # fmt: skip


def test_models_that_read_other_parts_of_a_text_are_not_compared():
    with pytest.raises(UsageError, match="give one --context"):
        compare_models([segment("abcd", [1, 4], [1, 2])], [segment("cd", [1, 2], [1, 2])], files=1)


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_tokens_and_words_are_found_in_their_document_by_their_offsets(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 300})
    documents = [TEXT * 5, "the owl\n", "ran"]
    (tmp_path / "a.txt").write_text(f"{SEPARATOR}\n".join(documents))
    found = score_files(make_model(), tokenizer, tmp_path, context=16, stride=8, batch_size=3)
    spans = list(merge_into_spans(found))
    for document, text in enumerate(documents):
        tokens, words = (
            [each for each in iterate(found, ["a.txt"]) if each["document"] == document]
            for iterate in (iterate_tokens, iterate_words)
        )
        assert [token["token"] for token in tokens] == tokenizer.encode(text)
        assert [word["text"] for word in words] == text.split()
        assert [each["index"] for each in (*tokens, *words)] == [*range(len(tokens)), *range(len(words))]
        for each in (*tokens, *words):
            data = text.encode()[each["offset"] : each["offset"] + each["bytes"]]
            assert each["text"] == data.decode(errors="replace")
        assert (tokens[0]["nats"] is None) == (words[0]["bits"] is None) == (tokenizer is CHAR)
        assert "".join(span.text for span in spans if span.document == document) == text
        nats = sum(token["nats"] for token in tokens[words[0]["tokens"] :])
        assert sum(word["bits"] for word in words[1:]) == pytest.approx(nats / np.log(2))


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
