"""Files are measured whatever they are called and wherever they come from; what is wrong is one line."""

from __future__ import annotations

import io
import sys

import pytest

from cli.main import run
from tests.cli.small_runs import TEXT


def test_a_checkpoint_counts_as_its_run(report, runs, texts):
    from_run, from_checkpoint = report(runs["bpe"], texts), report(runs["bpe"] / "checkpoints/step-0", texts)
    assert from_run["total"] == from_checkpoint["total"]


@pytest.mark.parametrize("arguments", [["-"], []])
def test_standard_input_is_a_file_too(report, runs, texts, monkeypatch, arguments):
    expected = report(runs["bpe"], texts / "a.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    reported = report(runs["bpe"], *arguments)
    assert reported["files"][0]["file"] == "stdin"
    assert reported["total"] == expected["total"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"The \xff owl", "byte offset 4"), (b"\x7fELF\x00\x01", "binary"), (None, "no such file")],
    ids=["invalid UTF-8", "binary", "missing"],
)
def test_bad_files_are_one_line_and_exit_code_1(capsys, runs, tmp_path, content, message):
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    assert run(["perplexity", str(runs["bpe"]), str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err
    assert str(path) in output.err
