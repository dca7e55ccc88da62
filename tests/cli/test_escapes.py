"""Nothing that a model, a file or its name holds commands a terminal; a pipe gets it as it is."""

import csv
import io
import json
import os
import re
import sys

import pytest

from cli.console import (
    escape_controls,
    escape_controls_and_line_ends,
    escape_for_stream,
    format_json_line,
    format_label,
)
from cli.generating import write_text
from cli.main import run
from lm.run_folder import find_checkpoint, load_config
from tests.cli.small_runs import TEXT, make_run
from tests.cli.terminal import Terminal
from tests.forked import lm

EVERYTHING = "".join(map(chr, [*range(0xD800), *range(0xDC80, 0xDD00)]))  # the last as in names that are no UTF-8
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
STYLES = re.compile(r"\x1b\[(1|2|0)?m")
ESCAPE = 27
IN_A_NAME = "\x1b]0;name\x07\x9b31m"


def test_what_is_drawn_has_no_control_characters():
    assert set(CONTROLS.findall(escape_controls(EVERYTHING))) == {"\n"}
    assert set(CONTROLS.findall(escape_controls_and_line_ends(EVERYTHING))) == {"\n"}
    assert CONTROLS.findall(format_label(EVERYTHING)) == []
    assert set(CONTROLS.findall(escape_for_stream(EVERYTHING, Terminal()))) == {"\n", "\t"}
    assert escape_for_stream(EVERYTHING, io.StringIO()) == EVERYTHING
    assert escape_for_stream("고양이 — ü\n", Terminal()) == "고양이 — ü\n"
    for text in (escape_controls(EVERYTHING), escape_controls_and_line_ends(EVERYTHING), format_label(EVERYTHING)):
        text.encode()


def test_a_stream_that_is_no_terminal_gets_text_as_it_is_beside_one(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    write_text(EVERYTHING, file := io.StringIO())
    assert file.getvalue() == EVERYTHING


def test_json_is_one_line_to_every_reader_and_commands_no_terminal():
    values = {"text": EVERYTHING}
    line = format_json_line(values)
    assert len(line.splitlines()) == 1
    assert json.loads(line) == values
    assert CONTROLS.findall(line) == []
    assert "고양이" in format_json_line("고양이")
    assert format_json_line([float("nan"), {"a": float("-inf")}]) == '[null, {"a": null}]'


@pytest.fixture
def escaping(tmp_path):
    return make_run(tmp_path / "run", kind="byte")


def test_generated_control_characters_are_drawn_on_a_terminal_alone(escaping, capsys, monkeypatch):
    arguments = ["generate", str(escaping), "a\x1bb", "--max-tokens", "3", "--logit-bias", f"{ESCAPE}=1000"]
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("a\x1bb" + "\x1b" * 3)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert run(arguments) == 0
    assert terminal.getvalue().startswith("a␛b␛␛␛")


def test_names_command_no_terminal(tmp_path, capsys, monkeypatch):
    folder, file = make_run(tmp_path / IN_A_NAME, kind="byte"), tmp_path / f"{IN_A_NAME}.txt"
    file.write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for arguments in (
        ["perplexity", folder.name, file.name],
        ["perplexity", folder.name, file.name, "--versus", folder.name],
        ["evaluate", "--hypotheses", file.name, "--target", file.name, "--versus", file.name],
        ["runs", "."],
        ["info", folder.name],
        ["prepare", file.name, "--tokenizer", "byte", "-o", f"{IN_A_NAME}-tokens"],
        ["train", file.name, "-o", folder.name],
    ):
        monkeypatch.setattr(sys, "stdout", out := Terminal())
        run(arguments)
        written = out.getvalue() + capsys.readouterr().err
        assert set(CONTROLS.findall(STYLES.sub("", written))) <= {"\n"}, arguments


def test_names_that_are_no_utf8_are_escaped(tmp_path, escaping, capsys):
    file = tmp_path / os.fsdecode(b"caf\xe9.txt")
    file.write_text(TEXT)
    assert run(["perplexity", str(escaping), str(file), "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["file"] == str(file)
    assert "caf\\udce9.txt" in (tmp_path / "page.html").read_text()
    done = lm("perplexity", escaping, file, "--csv")
    assert done.returncode == 0, done.stderr
    (first, *_) = csv.DictReader(io.StringIO(done.stdout))
    assert first["file"].endswith("caf\\udce9.txt")


def test_a_corpus_may_be_called_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    names = [os.fsdecode(name) for name in (b"caf\xe9.txt", b"held-\xff.txt", b"tokens-\xfe")]
    for name in names[:2]:
        (tmp_path / name).write_text(TEXT)
    assert run(["prepare", names[0], "-o", names[2], "--validation", names[1], "--tokenizer", "byte"]) == 0
    shape = ["--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "8", "--steps", "1"]
    assert run(["train", names[2], *shape, "-o", "run"]) == 0
    assert load_config(find_checkpoint(tmp_path / "run")).data.validation == names[1]
