import numpy as np
import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.tokenizer import training
from lm.tokenizer.offsets import TokenOffsets
from lm.tokenizer.pieces import Piece
from tests.lm.tokenizers_elsewhere import TEXT


def parts(tokenizer, text, context="", context_tokens=0):
    """The bytes of the text that each token ends."""
    tokens = tokenizer.encode_batch([context + text])[0][context_tokens:]
    piece = Piece(text, starts_document=not context, context=context, context_tokens=context_tokens)
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
