import json

import numpy as np
import pytest
import tokenizers

from lm.config.run_config import TokenizerConfig
from lm.text import Record
from lm.tokenizer import Tokenizer, training
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from tests.lm.tokenizers_elsewhere import TEXT, bert_like, cl100k_like, gpt2_like, llama2_like


def with_unknown(characters: str) -> Tokenizer:
    """A tokenizer of characters, in which a question mark stands for all others."""
    description = training.train([characters], TokenizerConfig(kind="char"), corpus_bytes=1).description
    description["model"]["unk_token"] = "?"
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)))


def parts(tokenizer, text):
    """The bytes of the text that each token ends."""
    (tokens,) = tokenizer.encode_batch([text])
    ends = TokenOffsets(tokenizer).ends(Record.of_text(text), tokens)
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


def loss(tokenizer, text, context=""):
    count = len(tokenizer.encode(context)) if context else 0
    piece = Record.of_text(text, starts=not context)._replace(context=context)
    return TokenOffsets(tokenizer).round_trip_loss(piece, tokenizer.encode_batch([context + text])[0][count:])


@pytest.mark.parametrize("made", [gpt2_like, cl100k_like, llama2_like])
@pytest.mark.parametrize("text", [TEXT, "", "\n\n", "  the  cat", "한국어 ☃🦉"])
def test_lossless_tokenizers_lose_nothing(made, text):
    tokenizer = Tokenizer(made())
    assert loss(tokenizer, text) == RoundTripLoss()
    assert loss(tokenizer, text, "dog") == RoundTripLoss()


def test_an_uncased_tokenizer_loses_case_accents_and_what_it_does_not_know():
    tokenizer = Tokenizer(bert_like())
    assert loss(tokenizer, "the mat and the dog") == RoundTripLoss()
    assert loss(tokenizer, "The mat and The dog") == RoundTripLoss(0, 2)
    assert loss(tokenizer, "the 🦉 mat") == RoundTripLoss(1, 4)


def test_an_unknown_character_counts_with_its_bytes():
    tokenizer = with_unknown("abc?")
    assert loss(tokenizer, "a한b☃c") == RoundTripLoss(2, 6)


@pytest.mark.parametrize("text", [TEXT, "", "\n\n", "  the  cat", "👩‍👩‍👧", "zq☃x"])
def test_ends_cover_any_text_with_any_tokenizer(elsewhere, text):
    found, _ = parts(elsewhere, text)
    assert b"".join(found) == (text.encode() if found else b"")
