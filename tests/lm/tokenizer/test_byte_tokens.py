"""Vocabularies spell bytes as the library does."""

from __future__ import annotations

import pytest
import tokenizers

from lm.tokenizer.byte_tokens import byte_alphabet, decode_byte_fallback, decode_byte_level


def test_the_byte_alphabet_is_the_library_s() -> None:
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    encoded = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é\n ")
    assert bytes(byte_alphabet()[character] for character in encoded[0][0]) == "é\n ".encode()


def test_a_token_of_other_characters_stands_for_itself() -> None:
    assert decode_byte_level("Ġthe") == b" the"
    assert decode_byte_level("한") == "한".encode()


@pytest.mark.parametrize(
    ("token", "byte"), [("<0x0A>", b"\n"), ("<0xff>", b"\xff"), ("<0x0A> ", None), ("<0x0>", None), ("a", None)]
)
def test_byte_fallback_tokens_spell_one_byte(token: str, byte: bytes | None) -> None:
    assert decode_byte_fallback(token) == byte
