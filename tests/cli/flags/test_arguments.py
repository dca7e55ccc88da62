"""A text comes from the command line or from a pipe, and never from a terminal that nobody asked."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from cli.flags.arguments import read_input_lines, read_text_argument
from lm.errors import InputError


@pytest.fixture
def pipe(monkeypatch):
    """Puts bytes into stdin."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_an_argument_is_the_text(pipe):
    pipe(b"not this")
    assert read_text_argument("Once\n") == "Once\n"
    assert read_text_argument("") == ""


@pytest.mark.parametrize("argument", ["-", None])
def test_a_pipe_is_read_less_one_line_end(pipe, argument):
    for data, text in ((b"Once", "Once"), (b"Once\n", "Once"), (b"Once\r\n", "Once"), (b"Once\n\n", "Once\n")):
        pipe(data)
        assert read_text_argument(argument) == text


def test_bytes_that_are_no_text_are_refused(pipe):
    pipe(b"\xff")
    with pytest.raises(InputError, match="stdin"):
        read_text_argument("-")


def test_a_terminal_is_not_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert read_text_argument(None) is None


def test_files_and_stdin_follow_one_another(tmp_path, pipe):
    (tmp_path / "a").write_text("one\ntwo")
    pipe("狐\n\n".encode())
    assert list(read_input_lines([tmp_path / "a", Path("-")])) == ["one", "two", "狐", ""]
