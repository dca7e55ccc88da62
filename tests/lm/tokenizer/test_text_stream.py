"""Ids decoded one by one are the text of all of them, character by character."""

from __future__ import annotations

import numpy as np
import pytest

from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.preparing import byte_tokenizer


def some_ids(tokenizer: Tokenizer) -> list[list[int]]:
    draw = np.random.default_rng(5)
    lines = ["The cat's  mat\n", "한국어 고양이", "👩‍👩‍👧 e\u0301 🇰🇷", " leading", "trailing  ", ""]
    valid = [tokenizer.encode(line) for line in lines]
    noise = [draw.integers(0, tokenizer.vocab_size, size=60).tolist() for _ in range(40)]
    return valid + noise


@pytest.mark.parametrize("skip_special", [True, False])
def test_pieces_joined_are_the_whole(elsewhere: Tokenizer, skip_special: bool) -> None:
    for ids in some_ids(elsewhere):
        stream = elsewhere.decode_stream(skip_special=skip_special)
        text = "".join([stream.feed(index) for index in ids]) + stream.finish()
        assert text == elsewhere.decode(ids, skip_special=skip_special)


def test_no_character_is_split_and_none_is_late() -> None:
    tokenizer = byte_tokenizer()
    stream = tokenizer.decode_stream()
    assert [stream.feed(byte) for byte in "é한".encode()] == ["", "é", "", "", "한"]
    assert stream.finish() == ""


def test_invalid_and_incomplete_bytes_become_replacement_characters() -> None:
    tokenizer = byte_tokenizer()
    for data in (b"\xff\xfea", b"\xed\x95", b"a\xf0\x9f\x99b", b"\xc0\x80", b"\xed\xa0\x80"):
        stream = tokenizer.decode_stream()
        assert "".join(map(stream.feed, data)) + stream.finish() == data.decode(errors="replace")
        assert tokenizer.decode(list(data)) == data.decode(errors="replace")
