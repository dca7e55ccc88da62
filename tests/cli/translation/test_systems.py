"""Files of translations and their references belong together line by line."""

from __future__ import annotations

import pytest

from cli.translation.evaluation import SystemOutput, read_lines, warn_of_tokenized_text, write_system
from lm.config.evaluation import ScoringConfig
from lm.errors import InputError, UsageError


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in {"out": "a\nb\n", "one.de": "x\ny\n", "two.de": "v\nw\n", "short.de": "x\n"}.items():
        (tmp_path / name).write_text(lines)
    return tmp_path


def test_lines_and_those_of_each_reference(files):
    assert read_lines("out", ["one.de", "two.de"]) == (["a", "b"], [["x", "y"], ["v", "w"]])


def test_files_of_different_lengths_are_refused(files):
    with pytest.raises(InputError, match="has 2 lines and short.de has 1 line:"):
        read_lines("out", ["short.de"])
    with pytest.raises(UsageError, match="name one"):
        read_lines("*.de", ["one.de"])


def test_translations_are_written_line_by_line(files, capsys):
    write_system(files / "written", SystemOutput("run", ["a", "", "b"]))
    assert (files / "written").read_text() == "a\n\nb\n"
    assert capsys.readouterr().err == f"wrote {files / 'written'}\n"


@pytest.mark.parametrize(
    ("lines", "tokenize", "warned"),
    [(["a .", "b ."], "13a", True), (["a .", "b ."], "none", False), (["a.", "b ."], "13a", False)],
)
def test_tokenized_text_is_noted(capsys, lines, tokenize, warned):
    warn_of_tokenized_text(SystemOutput("run", lines), ScoringConfig(tokenize=tokenize))
    assert ("look tokenized" in capsys.readouterr().err) is warned
