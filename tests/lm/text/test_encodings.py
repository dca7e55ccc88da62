"""Bytes that are not UTF-8 are refused with what they may be and how to convert them."""

from __future__ import annotations

import pytest

from lm.errors import InputError
from lm.text.encodings import decode


def decoded(data: bytes) -> str:
    return decode(data, name="corpus.txt")


def test_utf8_is_decoded_as_it_is() -> None:
    assert decoded("\ufeff한국어 é🙂\r\n".encode()) == "\ufeff한국어 é🙂\r\n"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("한국어 글", "cp949"),
        ("日本語のテキスト", "shift_jis"),
        ("中文的文本", "gb18030"),
        ("naïve café", "cp1252"),
    ],
)
def test_encodings_that_fit_are_named(text: str, encoding: str) -> None:
    convert = r"iconv -f ENCODING -t UTF-8 \S*corpus\.txt > NEW"
    with pytest.raises(InputError, match=rf"{convert}; it could be .*\b{encoding.upper()}\b"):
        decoded((text + "\n").encode(encoding))


def test_what_is_text_in_no_encoding_is_not_guessed() -> None:
    with pytest.raises(InputError, match="it may be no text at all"):
        decoded(bytes(range(254, 0, -1)))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_told_by_its_byte_order_mark(encoding: str) -> None:
    mark = "" if encoding == "utf-16" else "\ufeff"
    with pytest.raises(InputError, match=r"looks like UTF-16 text; convert it first: .*corpus\.txt > NEW$"):
        decoded((mark + "text").encode(encoding))


def test_text_that_ends_inside_a_character_is_cut_off() -> None:
    with pytest.raises(InputError, match=r"byte offset 6 \(0xec\): it ends inside a character"):
        decoded("한국어".encode()[:-1])
