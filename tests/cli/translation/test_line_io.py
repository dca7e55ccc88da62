"""Each line of input has its lines of output, in order."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from cli.translation.line_io import (
    read_lines_with_heads,
    read_prefixes,
    warn_of_tabs,
    with_progress,
    write_translations,
)
from lm.decoding.translation import TranslatedLine, Translation
from lm.errors import InputError, UsageError


def translated(source: str, *texts: str, left_out: int = 0) -> TranslatedLine:
    made = tuple(Translation(text, tokens=(1,), logprobs=(-0.5,), score=-0.5, finish_reason="end") for text in texts)
    return TranslatedLine(source, made, left_out)


def test_each_file_has_its_file_of_heads(tmp_path, monkeypatch):
    for name, text in {"a": "one two\nsix", "heads": "2 0\n0\n", "more": "0 1\n\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("狐 two\n\n".encode())))
    lines, heads = read_lines_with_heads([tmp_path / "a", Path("-")], [tmp_path / "heads", tmp_path / "more"])
    assert list(zip(lines, heads, strict=True)) == [("one two", (2, 0)), ("six", (0,)), ("狐 two", (0, 1)), ("", ())]
    with pytest.raises(UsageError, match="1 files to translate and 2 files of heads"):
        read_lines_with_heads([tmp_path / "a"], [tmp_path / "heads", tmp_path / "more"])
    with pytest.raises(InputError, match="more: line 2 has 0 heads, and its sentence 1 word$"):
        list(read_lines_with_heads([tmp_path / "a"], [tmp_path / "more"])[0])


def test_tabs_are_warned_of_once(capsys):
    lines = ["a", "b\tc", "d\te"]
    assert list(warn_of_tabs(lines)) == lines
    assert capsys.readouterr().err.count("line 2 has a tab: whole lines are translated") == 1


def test_a_prefix_is_for_all_lines_or_for_its_own(tmp_path):
    assert read_prefixes(None, None) is None
    prefixes = iter(read_prefixes("Der", None))
    assert [next(prefixes) for _ in range(3)] == ["Der"] * 3
    (tmp_path / "prefixes").write_text("Der\n\nDie\n")
    assert list(read_prefixes(None, tmp_path / "prefixes")) == ["Der", "", "Die"]


def test_every_line_has_as_many_lines_of_output(capsys):
    stream = io.StringIO()
    write_translations(stream, 1, translated("owl", "Eule", "Uhu"), n_best=3, as_json=False)
    write_translations(stream, 2, translated("fox", "Fuchs", left_out=4), n_best=3, as_json=False)
    assert stream.getvalue() == "Eule\nUhu\n\nFuchs\n\n\n"
    assert capsys.readouterr().err == "line 2: its last 4 tokens were not read: the line is too long for the model\n"


def test_json_is_one_line_for_each(capsys):
    stream = io.StringIO()
    write_translations(stream, 7, translated("owl", "Eule"), n_best=3, as_json=True)
    (line,) = stream.getvalue().splitlines()
    report = json.loads(line)
    assert (report["line"], report["source"]) == (7, "owl")
    assert report["translations"][0]["text"] == "Eule"


@pytest.mark.parametrize("shown", [True, False])
def test_watching_changes_nothing(capsys, shown):
    results = [translated(str(number), "x") for number in range(5)]
    assert list(with_progress(iter(results), shown=shown)) == results
    assert capsys.readouterr().err == ""
