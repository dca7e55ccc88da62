import numpy as np
import pytest

from lm.evaluation.scoring import Piece, Scored
from lm.evaluation.surprisal import iterate_tokens, iterate_words, merge_into_spans
from lm.tokenizer.offsets import RoundTripLoss
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model, score_files

FAMILY, FLAGS, SYLLABLE = "👩‍👩‍👧", "🇰🇷🇩🇪", "\u1112\u1161\u11ab"


def segment(text, ends, nats, *, file=0, document=0) -> Scored:
    tokens, places = np.arange(len(ends)), np.array(ends, dtype=np.int64)
    piece = Piece(file, document, text, tokens, True, 0, RoundTripLoss(), lambda: places)
    return Scored(piece, 0, np.array(nats, dtype=np.float64))


def bytewise(text, **place) -> Scored:
    size = len(text.encode())
    return segment(text, range(1, size + 1), [1.0] * size, **place)


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
    ],
)
def test_white_space_belongs_to_the_next_word_and_the_last_to_the_last(text, ends, words):
    found = iterate_words([segment(text, ends, np.array([1, 2, 4]) * np.log(2))], ["file"])
    assert {word["text"]: word["bits"] for word in found} == pytest.approx(words)


@pytest.mark.parametrize("character", ["a", "é", "한", "🦉", FAMILY, "👍🏽", "e\u0301", SYLLABLE, "\r\n", "❤️", "1️⃣"])
def test_what_is_drawn_as_one_is_one_span(character):
    parts = list(merge_into_spans([bytewise(f"x{character}y")]))
    size = len(character.encode())
    assert [(part.offset, part.text, part.tokens, part.nats) for part in parts] == [
        (0, "x", 1, 1.0), (1, character, size, float(size)), (1 + size, "y", 1, 1.0)
    ]  # fmt: skip


def test_a_character_may_be_split_between_segments():
    whole = bytewise("a한b")
    halves = [Scored(whole.piece, 0, np.ones(2)), Scored(whole.piece, 2, np.ones(3))]
    assert [span.text for span in merge_into_spans(halves)] == ["a", "한", "b"]


def test_documents_are_never_joined():
    parts = list(merge_into_spans([bytewise("e"), bytewise("\u0301", document=1), bytewise("\u0301", file=1)]))
    assert [(span.file, span.document, span.text) for span in parts] == [
        (0, 0, "e"),
        (0, 1, "\u0301"),
        (1, 0, "\u0301"),
    ]
