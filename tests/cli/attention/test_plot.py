"""Plots are written if matplotlib is installed, atomically."""

from __future__ import annotations

import sys

import pytest

from cli.main import run
from tests.cli.toy_translation import SOURCE, TARGET
from tests.lm.full_disk import full_disk


def test_pictures_are_drawn(succeed, gpt, translation_run, tmp_path):
    pytest.importorskip("matplotlib")
    succeed("attention", gpt, "The owl costs $5 and $6", "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    succeed(
        "attention", translation_run, SOURCE, "--target", TARGET, "--layer", 1, "--head", 1, "-o", tmp_path / "a.svg"
    )
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_pictures_say_what_they_need(capsys, gpt, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["attention", str(gpt), "The owl", "-o", str(tmp_path / "a.png")]) == 1
    assert "lm-toolkit[plot]" in capsys.readouterr().err


def test_a_picture_that_does_not_fit_is_not_there(capsys, gpt, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    with full_disk(after=100):
        assert run(["attention", str(gpt), "The owl", "-o", str(picture)]) == 1
    assert capsys.readouterr().err == f"lm: {picture.resolve()}: File too large\n"
    assert list(tmp_path.iterdir()) == []
