"""What cannot be shown is refused in one line; the text may come from a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from cli.main import run


@pytest.mark.parametrize("arguments", [["-"], []])
def test_the_text_can_come_from_a_pipe(succeed, gpt, monkeypatch, arguments):
    expected = succeed(gpt, "The owl 狐", "--json")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("The owl 狐\n".encode())))
    assert succeed(gpt, *arguments, "--json") == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "x"], "only one with an encoder translates"),
        (["-o", "a.gif"], "cannot tell what to write"),
        (["-o", "."], "is a folder"),
        (["-o", "a.pharaoh"], "only a translation has alignments"),
        (["--json", "-o", "a.json"], "exclude each other"),
        (["--layer", "4"], "layer 4: there are 3"),
    ],
)
def test_what_cannot_be_shown_is_refused(capsys, gpt, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    assert run(["attention", str(gpt), "The owl", *flags]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
