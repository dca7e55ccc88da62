"""BPE whose merges stay within characters: a frequent character is one token, a rare one its bytes."""

from collections import Counter

import numpy as np
import pytest

from lm.config.run_config import TokenizerConfig
from lm.tokenizer import Tokenizer
from lm.tokenizer.training import train
from tests.lm.training.texts import of_characters

TEXT = of_characters(20_000) + " The cat's mat. \r\n\t Größe, größer! " * 3 + "龘🙂"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = TokenizerConfig(vocab_size=16_384, merges="characters")
    return train([TEXT], config, corpus_bytes=len(TEXT.encode()))


def any_texts() -> list[str]:
    """Texts of any characters there are, with lone ones from all planes and from the training text."""
    draw = np.random.default_rng(4)
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    wild = ["".join(map(chr, draw.choice(points, size=300))) for _ in range(5)]
    return ["", " ", "\n\n  \n", "👩‍👩‍👧 🇰🇷 <|endoftext|>", *wild]


def test_any_text_comes_back(tokenizer):
    for text in any_texts():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special=False) == text
        stream = tokenizer.decode_stream()
        assert "".join(map(stream.feed, ids)) + stream.finish() == text


def test_a_character_that_occurs_twice_is_one_token_and_a_rare_one_its_bytes(tokenizer):
    for character, times in Counter(TEXT).items():
        ids = tokenizer.encode(character)
        assert b"".join(map(tokenizer.token_bytes, ids)) == character.encode()
        assert len(ids) == 1 or times == 1
    assert len(tokenizer.encode("𐍈")) == len("𐍈".encode())
