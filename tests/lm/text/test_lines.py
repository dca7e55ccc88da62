import gzip
import random

import pytest

from lm.errors import InputError
from lm.text import compression as module
from lm.text.compression import decode_lines, read_file_lines


def test_a_line_ends_at_its_line_feed_and_nowhere_else():
    text = "one\ntwo\r\n\n\u2028three\x0b\x0c\x85 \r four\n\nlast"
    expected = ["one", "two", "", "\u2028three\x0b\x0c\x85 \r four", "", "last"]
    data = b"\xef\xbb\xbf" + text.encode()
    for size in range(1, len(data) + 1):
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        assert list(decode_lines(parts, name="x")) == expected
    assert list(decode_lines([data + b"\n"], name="x")) == expected
    assert list(decode_lines([], name="x")) == []
    assert list(decode_lines([b"\n\n"], name="x")) == ["", ""]


def test_there_are_as_many_lines_as_wc_counts():
    chance = random.Random(3)
    for _ in range(200):
        text = "".join(chance.choices("a\né ", k=chance.randint(0, 30))) + "\n"
        assert len(list(decode_lines([text.encode()], name="x"))) == text.count("\n")


def test_a_line_is_there_before_the_next_one_comes():
    def parts():
        yield b"one\n"
        raise AssertionError("read too far")

    assert next(decode_lines(parts(), name="x")) == "one"


def test_what_is_no_utf_8_is_named():
    with pytest.raises(InputError, match="stdin: line 3 is not valid UTF-8 .at its byte 1."):
        list(decode_lines([b"one\ntwo\na\xff\n"], name="stdin"))


def test_files_may_be_compressed(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo"))
    assert list(read_file_lines(tmp_path / "a.txt.gz")) == ["one", "two"]
    with pytest.raises(InputError, match="no such file"):
        list(read_file_lines(tmp_path / "none"))


def test_a_line_that_is_too_long_is_named(monkeypatch):
    monkeypatch.setattr(module, "_MAX_LINE_BYTES", 5)
    assert list(decode_lines([b"12345\n", b"123", b"45"], name="x")) == ["12345", "12345"]
    for parts in ([b"a\n123", b"456"], [b"a\n123456"]):
        with pytest.raises(InputError, match="x: line 2 is longer than"):
            list(decode_lines(parts, name="x"))


def test_a_last_line_that_is_no_utf_8_is_named_too():
    with pytest.raises(InputError, match="x: line 2 is not valid UTF-8 .at its byte 0."):
        list(decode_lines([b"one\n\xff"], name="x"))
