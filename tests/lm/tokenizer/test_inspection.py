import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.text.find import find_text_files
from lm.text.records import Record
from lm.tokenizer import inspection, training
from lm.tokenizer.inspection import format_token
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from tests.lm.tokenizers_elsewhere import TEXT, bert_like, cl100k_like, gpt2_like, llama2_like

SEPARATOR = "<|endoftext|>"


def trained(kind: str) -> Tokenizer:
    return training.train([TEXT], TokenizerConfig(kind=kind), corpus_bytes=len(TEXT.encode())).tokenizer


class TestMeasure:
    def test_counts_are_those_of_the_whole_text(self, elsewhere, tmp_path, monkeypatch):
        monkeypatch.setattr(split_into_pieces, "__kwdefaults__", {"limit": 700})
        text = TEXT * 20
        (tmp_path / "a.txt").write_bytes(text.encode())
        (tmp_path / "b.jsonl").write_text('{"text": "two words"}\n{"text": "more"}\n')
        fit = inspection.measure_compression(
            elsewhere, find_text_files([str(tmp_path)], DataConfig(keep_line_ends=True))
        )
        texts = [text, "two words", "more"]
        assert fit.tokens == sum(len(elsewhere.encode(part)) for part in texts)
        assert (fit.words, fit.bytes) == (len(text.split()) + 3, len(text.encode()) + 13)
        assert fit.ratios()["bytes_per_token"] == fit.bytes / fit.tokens


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" the\n", "·the⏎"),
        (b"\n\t\0", r"⏎⇥\x00"),
        ("한".encode()[:2], r"\xed\x95"),
        ("é".encode() + b"\xed", r"é\xed"),
        ("\u200d\u2028".encode(), r"\u200d\u2028"),
        ("한글 🙂".encode(), "한글·🙂"),
    ],
)
def test_everything_in_a_token_can_be_seen(data, shown):
    assert format_token(data) == shown


def parts(tokenizer, text, context="", context_tokens=0):
    """The bytes of the text that each token ends."""
    tokens = tokenizer.encode_batch([context + text])[0][context_tokens:]
    piece = Record.of_text(text, starts=not context)._replace(context=context)
    ends = TokenOffsets(tokenizer).ends(piece, tokens)
    assert ends.dtype == np.int64
    assert len(ends) == len(tokens)
    assert (np.diff(ends, prepend=0) >= 0).all()
    assert len(ends) == 0 or ends[-1] == len(text.encode())
    starts = [0, *ends][: len(ends)]
    return [text.encode()[a:b] for a, b in zip(starts, ends, strict=True)], tokens


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_lossless_tokens_end_where_their_bytes_do_also_within_characters(name, request):
    tokenizer = request.getfixturevalue(name)
    found, tokens = parts(tokenizer, TEXT + "☃🦉")
    assert found == [tokenizer.token_bytes(int(token)) for token in tokens]
    assert any(part and part[0] & 0xC0 == 0x80 for part in found)


def test_characters_have_as_many_bytes_as_in_utf_8():
    """The first and the last of each length, between characters that the tokenizer knows."""
    tokenizer = training.train(["ab?"], TokenizerConfig(kind="char"), corpus_bytes=3, unknown="?").tokenizer
    edges = "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff"
    found, _ = parts(tokenizer, "".join(f"a{edge}b" for edge in edges))
    assert found == [part.encode() for edge in edges for part in ("a", edge, "b")]


def loss(tokenizer, text, context=""):
    count = len(tokenizer.encode(context)) if context else 0
    piece = Record.of_text(text, starts=not context)._replace(context=context)
    return TokenOffsets(tokenizer).round_trip_loss(piece, tokenizer.encode_batch([context + text])[0][count:])


@pytest.mark.parametrize("made", [gpt2_like, cl100k_like, llama2_like])
@pytest.mark.parametrize("text", [TEXT, "", " ", "\n\n", "the cat sat", "  the  cat", "한국어 ☃🦉"])
def test_lossless_tokenizers_lose_nothing(made, text):
    tokenizer = Tokenizer(made())
    assert loss(tokenizer, text) == RoundTripLoss()
    assert loss(tokenizer, text, "dog") == RoundTripLoss()


def test_an_uncased_tokenizer_loses_case_accents_and_what_it_does_not_know():
    tokenizer = Tokenizer(bert_like())
    assert loss(tokenizer, "the mat and the dog") == RoundTripLoss()
    assert loss(tokenizer, "The mat and The dog") == RoundTripLoss(0, 2)
    assert loss(tokenizer, "the\nmat") == RoundTripLoss(0, 1)
    assert loss(tokenizer, "the 🦉 mat") == RoundTripLoss(1, 4)


def test_an_unknown_character_counts_with_its_bytes_and_one_of_its_spelling_does_not():
    tokenizer = training.train(["abc?"], TokenizerConfig(kind="char"), corpus_bytes=4, unknown="?").tokenizer
    assert loss(tokenizer, "abc??") == RoundTripLoss()
    assert loss(tokenizer, "a한b☃?c") == RoundTripLoss(2, 6)


@pytest.mark.parametrize("text", [TEXT, "", " ", "\n\n", "한", "the cat sat", "  the  cat", "👩‍👩‍👧", "zq☃x"])
def test_ends_cover_any_text_with_any_tokenizer(elsewhere, text):
    found, _ = parts(elsewhere, text)
    assert b"".join(found) == (text.encode() if found else b"")
