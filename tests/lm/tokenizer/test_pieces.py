"""Texts are split into pieces, words and characters without changing their tokens."""

import random
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.data.masking import WordBoundaries
from lm.text.documents import TextPiece
from lm.tokenizer import training
from lm.tokenizer.byte_tokens import byte_alphabet, decode_byte_fallback, decode_byte_level
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from tests.lm.corpus.preparing import byte_tokenizer
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
        "wide gaps": ("end" + " " * 700 + "start\n" * 40) * 4,
        "digits": "".join(draw.choices("0123456789", k=3000)),
        "no spaces": "我喜欢学习语言模型天气很好" * 200,
        "only spaces": " " * 3000,
    }


def fragments(text: str, size: int) -> list[TextPiece]:
    return [TextPiece(text[start : start + size], starts_document=not start) for start in range(0, len(text), size)]


@pytest.mark.parametrize("name", list(texts()))
def test_pieces_have_the_tokens_of_the_whole(name, elsewhere):
    text = texts()[name]
    cut = list(split_into_pieces(fragments(text, 97), elsewhere, limit=400))
    assert "".join(piece.text for piece in cut) == text
    tokens = [elsewhere.encode(piece.context + piece.text)[piece.context_tokens :] for piece in cut]
    assert list(chain.from_iterable(tokens)) == elsewhere.encode(text)


@pytest.mark.parametrize("name", ["prose", "one word a line"])
def test_ordinary_text_is_cut_within_the_limit(name, elsewhere):
    *lengths, _ = [len(piece.text) for piece in split_into_pieces(fragments(texts()[name], 97), elsewhere, limit=400)]
    assert len(lengths) > 3
    assert 200 <= min(lengths) <= max(lengths) <= 400


def test_documents_stay_apart(gpt2):
    documents = ["a b c " * 100, "d", "e f " * 200]
    cut = split_into_pieces([fragment for text in documents for fragment in fragments(text, 50)], gpt2, limit=200)
    rebuilt: list[str] = []
    for piece in cut:
        if piece.starts_document:
            rebuilt.append("")
        rebuilt[-1] += piece.text
    assert rebuilt == documents


def test_without_a_tokenizer_words_stay_whole():
    text = "some words of text " * 200
    assert all(
        piece.text.endswith(("some", "words", "of", "text", " "))
        for piece in split_into_pieces(fragments(text, 70), None, limit=300)
    )


@pytest.mark.parametrize("name", ["only spaces", "digits", "no spaces"])
def test_what_can_be_cut_nowhere_is_cut_all_the_same(name, monkeypatch):
    """To a tokenizer each text is one token, so that parts never have the tokens of the whole.

    A word without an end takes memory for each of its characters; the work grows as the length does."""
    monkeypatch.setattr("lm.tokenizer.tokenizer.MAX_PIECE_CHARACTERS", 1600)
    whole = SimpleNamespace(encode=lambda text: [text])
    for length in (10_000, 40_000):
        text = (texts()[name] * 100)[:length]
        cut = list(split_into_pieces(fragments(text, 97), whole, limit=400))
        assert "".join(piece.text for piece in cut) == text
        assert max(len(piece.text) for piece in cut) <= 1600 + 1024
        assert len(cut) <= length / 1600 + 1


@pytest.mark.parametrize("text", [" ", "a"])
def test_the_work_of_cutting_grows_as_the_length_does(text, gpt2):
    encoded = []
    counting = SimpleNamespace(encode=lambda text: encoded.append(len(text)) or gpt2.encode(text))
    work = []
    for length in (1 << 18, 1 << 20):
        encoded.clear()
        list(split_into_pieces(fragments((text * length)[:length], 1 << 16), counting))
        work.append(sum(encoded))
    assert work[1] <= 5 * work[0] + (1 << 18)


SENTENCE = "Zwei Füchse, ein Ünglück: don't run 100 m! 狐\n"


def trained(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=265)
    special = (END_OF_TEXT, MASK)
    return training.train([SENTENCE], config, corpus_bytes=len(SENTENCE.encode()), special_tokens=special).tokenizer


def words(tokenizer: Tokenizer, ids: list[int]) -> list[bytes]:
    found: list[bytes] = []
    starts = WordBoundaries.from_tokenizer(tokenizer).starts(np.array([ids]))[0]
    for index, begins in zip(ids, starts, strict=True):
        found = [*found, b""] if begins else found
        found[-1] += tokenizer.token_bytes(index)
    return found


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_words_are_runs_of_letters_and_digits(kind):
    tokenizer = trained(kind)
    expected = ["Zwei", " ", "Füchse", ",", " ", "ein", " ", "Ünglück", ":", " ", "don", "'", "t", " ", "run", " ",
                "100", " ", "m", "!", " ", "狐", "\n"]  # fmt: skip
    assert [word.decode() for word in words(tokenizer, tokenizer.encode(SENTENCE))] == expected


def test_a_space_that_a_token_begins_with_parts_words():
    tokenizer = trained("bpe")
    found = [word.decode() for word in words(tokenizer, tokenizer.encode(" ein Ünglück,"))]
    assert "".join(found) == " ein Ünglück,"
    assert [word.strip() for word in found if word.strip()] == ["ein", "Ünglück", ","]


def test_special_tokens_are_words_of_their_own():
    tokenizer = trained("char")
    ids = [*tokenizer.encode("Zw"), tokenizer.mask, tokenizer.end_of_text, *tokenizer.encode("ei")]
    assert words(tokenizer, ids) == [b"Zw", MASK.encode(), END_OF_TEXT.encode(), b"ei"]


def test_the_byte_alphabet_is_the_library_s():
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    encoded = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é\n ")
    assert bytes(byte_alphabet()[character] for character in encoded[0][0]) == "é\n ".encode()


def test_a_token_of_other_characters_stands_for_itself():
    assert decode_byte_level("Ġthe") == b" the"
    assert decode_byte_level("한") == "한".encode()


@pytest.mark.parametrize(
    ("token", "byte"), [("<0x0A>", b"\n"), ("<0xff>", b"\xff"), ("<0x0A> ", None), ("<0x0>", None), ("a", None)]
)
def test_byte_fallback_tokens_spell_one_byte(token, byte):
    assert decode_byte_fallback(token) == byte


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


def test_no_character_is_split_and_none_is_late():
    tokenizer = byte_tokenizer()
    stream = tokenizer.decode_stream()
    assert [stream.feed(byte) for byte in "é한".encode()] == ["", "é", "", "", "한"]
    assert stream.finish() == ""


def test_invalid_and_incomplete_bytes_become_replacement_characters():
    tokenizer = byte_tokenizer()
    for data in (b"\xff\xfea", b"\xed\x95", b"a\xf0\x9f\x99b", b"\xc0\x80", b"\xed\xa0\x80"):
        stream = tokenizer.decode_stream()
        assert "".join(map(stream.feed, data)) + stream.finish() == data.decode(errors="replace")
        assert tokenizer.decode(list(data)) == data.decode(errors="replace")
