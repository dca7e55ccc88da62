"""`lm bench`: what it prints, and what it refuses; none of these tests is about speed."""

from __future__ import annotations

import pytest

from cli.main import run
from lm.benchmark import hugging_face

QUICK = ["--device", "cpu", "--dtype", "float32", "--seconds", "0", "--batch-size", "1"]


@pytest.fixture
def lonely(monkeypatch):
    """A machine without transformers."""
    monkeypatch.setattr(hugging_face, "is_installed", lambda: False)


def test_comparing_needs_something_to_compare_with(capsys, lonely):
    assert run(["bench", "nanogpt-cpu", *QUICK, "--compare"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "lm: comparing with Hugging Face needs its package: pip install transformers\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "gtp2"], "no preset 'gtp2' (did you mean 'gpt2'?)"),
        (["tiny", "translation"], "translation is a model that translates"),
        (["tiny", "--seconds", "-1"], "--seconds must be at least 0"),
        (["tiny", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["tiny", "--dtype", "int3"], "dtype cannot be 'int3'"),
    ],
)
def test_one_clear_line(arguments, message, capsys):
    assert run(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert message in printed.err
