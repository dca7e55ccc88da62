"""Texts are split into pieces, words and characters without changing their tokens."""

import random
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest

from lm.text import Record
from lm.tokenizer import Tokenizer, encode_pieces, split_into_pieces
from tests.lm.tokenizers_elsewhere import TEXT

WORDS = [
    "cat", "don't", "한국어", "天气", "x1", "12345", "...", "é", "(", "\n\n", "\r\n", "\t", "    ", "🙂", "_", "\u3000",
]  # fmt: skip


def texts() -> dict[str, str]:
    draw = random.Random(11)
    return {
        "prose": TEXT * 12,
        "adversarial white space": "".join(
            draw.choice(WORDS) + draw.choice(["", " ", "  ", "\n", " \n "]) for _ in range(2000)
        ),
        "one word a line": "".join(f"word{draw.randrange(99)}\n" for _ in range(600)),
        "digits": "".join(draw.choices("0123456789", k=3000)),
        "no spaces": "我喜欢学习语言模型天气很好" * 200,
    }


def fragments(text: str, size: int) -> list[Record]:
    return [Record.of_text(text[start : start + size], starts=not start) for start in range(0, len(text), size)]


@pytest.mark.parametrize("name", list(texts()))
def test_pieces_have_the_tokens_of_the_whole(name, elsewhere):
    text = texts()[name]
    cut = list(split_into_pieces(fragments(text, 97), elsewhere, limit=400))
    assert "".join(piece.text for piece in cut) == text
    tokens = map(np.ndarray.tolist, encode_pieces(cut, elsewhere))
    assert list(chain.from_iterable(tokens)) == elsewhere.encode(text)


@pytest.mark.parametrize("text", [" ", "a"])
def test_the_work_of_cutting_grows_as_the_length_does(text, gpt2):
    encoded = []
    counting = SimpleNamespace(kind="bpe", encode=lambda text: encoded.append(len(text)) or gpt2.encode(text))
    work = []
    for length in (1 << 18, 1 << 20):
        encoded.clear()
        list(split_into_pieces(fragments((text * length)[:length], 1 << 16), counting))
        work.append(sum(encoded))
    assert work[1] <= 5 * work[0] + (1 << 18)


def some_ids(tokenizer: Tokenizer) -> list[list[int]]:
    draw = np.random.default_rng(5)
    lines = ["The cat's  mat\n", "한국어 고양이", "👩‍👩‍👧 e\u0301 🇰🇷", " leading", "trailing  ", ""]
    valid = [tokenizer.encode(line) for line in lines]
    noise = [draw.integers(0, tokenizer.vocab_size, size=60).tolist() for _ in range(40)]
    return valid + noise


def test_pieces_joined_are_the_whole(elsewhere):
    for ids in some_ids(elsewhere):
        stream = elsewhere.decode_stream()
        text = "".join([stream.feed(index) for index in ids]) + stream.finish()
        assert text == elsewhere.decode(ids)


def test_pieces_after_other_tokens_are_the_rest_of_the_whole(elsewhere):
    for line in ("the cat's  mat, the dog there", "한국어 고양이", "the 한 of 3 crêpes 🙂 and more"):
        ids = elsewhere.encode(line)
        for cut in range(len(ids)):
            if (before := elsewhere.decode(ids[:cut])).endswith("\ufffd"):  # inside a character
                continue
            stream = elsewhere.decode_stream(ids[:cut])
            text = "".join([stream.feed(index) for index in ids[cut:]]) + stream.finish()
            assert before + text == elsewhere.decode(ids)
