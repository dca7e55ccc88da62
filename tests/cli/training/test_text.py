"""Tokens are made once, and a run knows how they were made."""

from __future__ import annotations

import json

import pytest

from cli.main import run
from tests.system.conftest import SMALL


def test_a_second_run_reuses_the_tokens(place, capsys):
    assert run(["train", str(place / "text.txt"), "-o", str(place / "again"), "--steps", "2", *SMALL]) == 0
    assert "made before" in capsys.readouterr().err


def test_prepared_tokens_are_a_corpus(place):
    assert run(["prepare", str(place / "text.txt"), "-o", str(place / "tokens"), "--kind", "char"]) == 0
    shape = SMALL[:-2]
    assert run(["train", str(place / "tokens"), "-o", str(place / "prepared"), "--steps", "2", *shape]) == 0


def test_a_small_vocabulary_is_explained_only_where_it_was_made(place, capsys):
    tokens, said = str(place / "small-tokens"), "no more pairs occur often enough"
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--vocab-size", "260"]) == 0
    shape = SMALL[:-2]
    assert run(["train", tokens, "-o", str(place / "small"), "--steps", "2", *shape]) == 0
    assert said not in capsys.readouterr().err
    assert run(["train", str(place / "text.txt"), "-o", str(place / "bpe"), "--steps", "2", *shape]) == 0
    assert said in capsys.readouterr().err


def test_a_run_knows_how_its_prepared_tokens_were_made(place, capsys, tmp_path, monkeypatch):
    words = (place / "text.txt").read_text().split("\n")
    (tmp_path / "text.txt").write_text("\n%%\n".join(words[:200]))
    (tmp_path / "held.txt").write_text("\n%%\n".join(words[200:263]))
    made_with = ["--separator", "%%", "--validation", str(tmp_path / "held.txt"), "--field", "body"]
    tokens, shape = str(tmp_path / "tokens"), SMALL[:-2]
    monkeypatch.setenv("LM_FIELD", "body")  # typed, it would be refused: there are no rows
    assert run(["prepare", str(tmp_path / "text.txt"), "-o", tokens, "--kind", "byte", *made_with[:-2]]) == 0
    monkeypatch.delenv("LM_FIELD")
    for name, flags in (("silent", []), ("agreeing", made_with)):
        assert run(["train", tokens, "-o", str(tmp_path / name), "--steps", "1", *shape, *flags]) == 0
        data = json.loads((tmp_path / name / "config.json").read_text())["data"]
        assert data == {"separator": "%%", "validation": made_with[3], "field": "body", "supervised": False}
    capsys.readouterr()
    assert run(["perplexity", str(tmp_path / "silent"), str(tmp_path / "held.txt"), "--per-token"]) == 0
    documents = {json.loads(line)["document"] for line in capsys.readouterr().out.splitlines()}
    assert len(documents) == 63


@pytest.mark.parametrize("flags", [("--separator", "%%"), ("--validation", "0.2"), ("--field", "body")])
def test_flags_that_contradict_prepared_tokens_are_refused(place, capsys, tmp_path, monkeypatch, flags):
    tokens = str(tmp_path / "tokens")
    assert run(["prepare", str(place / "text.txt"), "-o", tokens, "--kind", "byte"]) == 0
    capsys.readouterr()
    assert run(["train", tokens, "-o", str(tmp_path / "run"), "--steps", "1", *SMALL[:-2], *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"({flags[0]})" in said
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("LM_" + flags[0][2:].upper(), flags[1])  # of other corpora
    assert run(["train", tokens, "-o", str(tmp_path / "run"), "--steps", "1", *SMALL[:-2]]) == 0
