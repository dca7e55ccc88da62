"""Inline casing: every text comes back, and words in other cases are the tokens of the word in lower case."""

import numpy as np
import pytest
from tokenizers import Regex, decoders

from lm.config.run_config import TokenizerConfig
from lm.text import Record
from lm.tokenizer import Tokenizer
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from lm.tokenizer.training import train
from tests.lm.tokenizers_elsewhere import gpt2_like

TEXT = "The king's HTML of Größe, ÉTÉ, ΑΒΓΣ and ЖУК: ABCDEFGHIJKLMNOPQRSTUVWXYZ. " * 20


def train_on(text: str) -> Tokenizer:
    return train([text], TokenizerConfig(vocab_size=400, inline_casing=True), corpus_bytes=len(text.encode()))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_on(TEXT)


def test_words_in_capitals_are_marks_and_the_word_in_lower_case(tokenizer):
    word = tokenizer.encode("king")
    for text, marks in (("King", 1), ("KING", 1), ("THEKing", 2)):
        assert tokenizer.encode(text)[-len(word) :] == word
        spelled = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode()
        assert sum(map(spelled.count, tokenizer.marks)) == marks
        assert "".join(character for character in spelled if character not in tokenizer.marks) == text.lower()


# A capital sigma is the last of the capitals of the second text: in a string of letters it would end a word
@pytest.mark.parametrize("corpus", [TEXT, TEXT.partition(" and")[0] * 20])
def test_any_text_comes_back_whole_and_as_a_stream(corpus):
    tokenizer = train_on(corpus)
    draw = np.random.default_rng(1)
    alphabet = [*"abCD eFG.\n\t'9_", "ß", "ẞ", "İ", "É", "é", "Σ", "ς", "ǅ", "Ж", "龘", "🙂", "\u0301"]
    texts = ["".join(draw.choice(alphabet, size=60)) for _ in range(300)]
    for text in ["A", "AB", "I am", "HTMLParser", "x" + "A" * 100 + "b", "Q" * 33, "DON'T", *texts]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        stream = tokenizer.decode_stream()
        assert "".join(map(stream.feed, ids)) + stream.finish() == text


def test_a_continuation_has_the_case_that_its_prompt_began(tokenizer):
    draw = np.random.default_rng(2)
    for _ in range(300):
        ids = draw.integers(tokenizer.vocab_size, size=40).tolist()
        ids += tokenizer.encode("KING")
        continued = tokenizer.decode_stream(ids)
        more = "".join(map(continued.feed, tokenizer.encode("doms"))) + continued.finish()
        assert more == "DOMS"


def test_a_mark_is_no_part_of_the_text_and_nothing_is_lost(tokenizer):
    text = "É THE King"
    ids, marks = np.array(tokenizer.encode(text)), tuple(mark.encode() for mark in tokenizer.marks)
    offsets = TokenOffsets(tokenizer)
    ends = offsets.ends(Record.of_text(text), ids).tolist()
    parts = [text.encode()[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    for token, part in zip(ids.tolist(), parts, strict=True):
        spelled = tokenizer.token_bytes(token)
        assert part in (b"", b" ") if spelled.endswith(marks) else part.decode().lower().encode() == spelled
    assert b"".join(parts) == text.encode()
    assert offsets.round_trip_loss(Record.of_text(text), ids) == RoundTripLoss()


def test_a_text_without_capitals_needs_no_marks():
    tokenizer = train(["none at all " * 9], TokenizerConfig(vocab_size=300, inline_casing=True), corpus_bytes=108)
    assert not tokenizer.marks
    assert tokenizer.decode(tokenizer.encode("None")) == "None"


def test_other_replacements_after_bytes_are_decoded_too():
    backend = gpt2_like()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex("at+"), "")])
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode("The cat sat, and walked.")
    stream = tokenizer.decode_stream()
    assert "".join(map(stream.feed, ids)) + stream.finish() == tokenizer.decode(ids) == "The c s, and walked."
