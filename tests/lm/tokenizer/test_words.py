"""Words of tokens: parted by white space and punctuation, and by what is no text."""

from __future__ import annotations

import numpy as np
import pytest

from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.data.masking import WordBoundaries
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer

TEXT = "Zwei Füchse, ein Ünglück: don't run 100 m! 狐\n"


def trained(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=265)
    special = (END_OF_TEXT, MASK)
    return training.train([TEXT], config, corpus_bytes=len(TEXT.encode()), special_tokens=special).tokenizer


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
    assert [word.decode() for word in words(tokenizer, tokenizer.encode(TEXT))] == expected


def test_a_space_that_a_token_begins_with_parts_words():
    tokenizer = trained("bpe")
    found = [word.decode() for word in words(tokenizer, tokenizer.encode(" ein Ünglück,"))]
    assert "".join(found) == " ein Ünglück,"
    assert [word.strip() for word in found if word.strip()] == ["ein", "Ünglück", ","]


def test_special_tokens_are_words_of_their_own():
    tokenizer = trained("char")
    ids = [*tokenizer.encode("Zw"), tokenizer.mask, tokenizer.end_of_text, *tokenizer.encode("ei")]
    assert words(tokenizer, ids) == [b"Zw", MASK.encode(), END_OF_TEXT.encode(), b"ei"]
