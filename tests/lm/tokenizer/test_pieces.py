from __future__ import annotations

import random
from itertools import chain
from types import SimpleNamespace

import pytest

from lm.text.documents import TextPiece
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from tests.lm.tokenizers_elsewhere import TEXT

WORDS = [
    "cat",
    "don't",
    "한국어",
    "天气",
    "x1",
    "12345",
    "...",
    "é",
    "(",
    "\n\n",
    "\r\n",
    "\t",
    "    ",
    "🙂",
    "_",
    "\u3000",
]


def texts() -> dict[str, str]:
    draw = random.Random(11)
    return {
        "prose": TEXT * 12,
        "adversarial white space": "".join(
            draw.choice(WORDS) + draw.choice(["", " ", "  ", "\n", " \n "]) for _ in range(2000)
        ),
        "one word a line": "".join(f"word{draw.randrange(99)}\n" for _ in range(600)),
        "wide gaps": ("end" + " " * 700 + "start\n" * 40) * 4,
        "digits": "".join(draw.choices("0123456789", k=3000)),
        "no spaces": "我喜欢学习语言模型天气很好" * 200,
        "only spaces": " " * 3000,
    }


def fragments(text: str, size: int) -> list[TextPiece]:
    return [TextPiece(text[start : start + size], starts_document=not start) for start in range(0, len(text), size)]


@pytest.mark.parametrize("name", list(texts()))
def test_pieces_have_the_tokens_of_the_whole(name: str, elsewhere: Tokenizer) -> None:
    text = texts()[name]
    cut = list(split_into_pieces(fragments(text, 97), elsewhere, limit=400))
    assert "".join(piece.text for piece in cut) == text
    tokens = [elsewhere.encode(piece.context + piece.text)[piece.context_tokens :] for piece in cut]
    assert list(chain.from_iterable(tokens)) == elsewhere.encode(text)


@pytest.mark.parametrize("name", ["prose", "one word a line"])
def test_ordinary_text_is_cut_within_the_limit(name: str, elsewhere: Tokenizer) -> None:
    *lengths, _ = [len(piece.text) for piece in split_into_pieces(fragments(texts()[name], 97), elsewhere, limit=400)]
    assert len(lengths) > 3
    assert 200 <= min(lengths) <= max(lengths) <= 400


def test_documents_stay_apart(gpt2: Tokenizer) -> None:
    documents = ["a b c " * 100, "d", "e f " * 200]
    cut = split_into_pieces([fragment for text in documents for fragment in fragments(text, 50)], gpt2, limit=200)
    rebuilt: list[str] = []
    for piece in cut:
        if piece.starts_document:
            rebuilt.append("")
        rebuilt[-1] += piece.text
    assert rebuilt == documents


def test_without_a_tokenizer_words_stay_whole() -> None:
    text = "some words of text " * 200
    assert all(
        piece.text.endswith(("some", "words", "of", "text", " "))
        for piece in split_into_pieces(fragments(text, 70), None, limit=300)
    )


@pytest.mark.parametrize("name", ["only spaces", "digits", "no spaces"])
def test_what_can_be_cut_nowhere_is_cut_all_the_same(
    name: str, gpt2: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word without an end takes memory for each of its characters; the work grows as the length does."""
    monkeypatch.setattr("lm.tokenizer.tokenizer.MAX_PIECE_CHARACTERS", 1600)
    monkeypatch.setattr("lm.tokenizer.tokenizer._check_cut", lambda *_: None)
    for length in (10_000, 40_000):
        text = (texts()[name] * 100)[:length]
        cut = list(split_into_pieces(fragments(text, 97), gpt2, limit=400))
        assert "".join(piece.text for piece in cut) == text
        assert max(len(piece.text) for piece in cut) <= 1600 + 1024
        assert len(cut) <= length / 1600 + 1


@pytest.mark.parametrize("text", [" ", "a"])
def test_the_work_of_cutting_grows_as_the_length_does(text: str, gpt2: Tokenizer) -> None:
    encoded = []
    counting = SimpleNamespace(encode=lambda text: encoded.append(len(text)) or gpt2.encode(text))
    work = []
    for length in (1 << 18, 1 << 20):
        encoded.clear()
        list(split_into_pieces(fragments((text * length)[:length], 1 << 16), counting))
        work.append(sum(encoded))
    assert work[1] <= 5 * work[0] + (1 << 18)
