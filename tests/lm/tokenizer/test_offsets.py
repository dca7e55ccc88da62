import numpy as np
import pytest
import tokenizers

from lm.config.tokenizer import TokenizerConfig
from lm.text.documents import TextPiece
from lm.tokenizer import training
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.tokenizers_elsewhere import TEXT, bert_like, cl100k_like, gpt2_like, llama2_like


def parts(tokenizer, text, context="", context_tokens=0):
    """The bytes of the text that each token ends."""
    tokens = tokenizer.encode_batch([context + text])[0][context_tokens:]
    piece = TextPiece(text, starts_document=not context, context=context, context_tokens=context_tokens)
    ends = TokenOffsets(tokenizer).ends(piece, tokens)
    assert ends.dtype == np.int64
    assert len(ends) == len(tokens)
    assert (np.diff(ends, prepend=0) >= 0).all()
    assert len(ends) == 0 or ends[-1] == len(text.encode())
    starts = [0, *ends][: len(ends)]
    return [text.encode()[a:b] for a, b in zip(starts, ends, strict=True)], tokens


@pytest.mark.parametrize("text", [TEXT, "", " ", "\n\n", "한", "the cat sat", "  the  cat", "👩‍👩‍👧", "zq☃x"])
def test_ends_cover_any_text_with_any_tokenizer(elsewhere, text):
    found, _ = parts(elsewhere, text)
    assert b"".join(found) == (text.encode() if found else b"")


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_lossless_tokens_end_where_their_bytes_do_also_within_characters(name, request):
    tokenizer = request.getfixturevalue(name)
    found, tokens = parts(tokenizer, TEXT + "☃🦉")
    assert found == [tokenizer.token_bytes(int(token)) for token in tokens]
    assert any(part and part[0] & 0xC0 == 0x80 for part in found)


def test_implied_spaces_and_unknown_characters_are_found_by_the_tokenizers_word(elsewhere):
    text = "the mat and the dog"
    found, tokens = parts(elsewhere, text)
    for part, token in zip(found, tokens, strict=True):
        assert part.strip().lower() == elsewhere.token_bytes(int(token)).strip().removeprefix(b"##")


def test_context_is_left_out(elsewhere):
    text, context = " and the mat", "dog"
    count = len(elsewhere.encode(context))
    found, _ = parts(elsewhere, text, context, count)
    assert b"".join(found) == text.encode()


def test_a_replaced_character_has_its_own_bytes():
    tokenizer = training.train(["abc?"], TokenizerConfig(kind="char"), corpus_bytes=4, unknown="?").tokenizer
    found, _ = parts(tokenizer, "a한b☃?c")
    assert found == [b"a", "한".encode(), b"b", "☃".encode(), b"?", b"c"]


def test_characters_have_as_many_bytes_as_in_utf_8():
    """The first and the last of each length, between characters that the tokenizer knows."""
    tokenizer = training.train(["ab?"], TokenizerConfig(kind="char"), corpus_bytes=3, unknown="?").tokenizer
    edges = "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff"
    found, _ = parts(tokenizer, "".join(f"a{edge}b" for edge in edges))
    assert found == [part.encode() for edge in edges for part in ("a", edge, "b")]


def loss(tokenizer, text, context=""):
    count = len(tokenizer.encode(context)) if context else 0
    piece = TextPiece(text, starts_document=not context, context=context, context_tokens=count)
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


def test_text_without_tokens_is_lost():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    assert loss(Tokenizer(backend), "한한") == RoundTripLoss(0, 6)
