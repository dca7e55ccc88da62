"""Help lists every flag once, under the name of its group, and does not depend on the environment."""

from __future__ import annotations

import re

from cli.flags.options import _summarize
from cli.main import run


def shown(capsys, *arguments: str) -> str:
    assert run([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def test_flags_stand_in_groups(capsys):
    text = shown(capsys, "perplexity")
    headings = re.findall(r"^(\w+):$", text, flags=re.MULTILINE)
    assert headings == [
        "Arguments",
        "Translations",
        "Output",
        "Perplexity",
        "Files",
        "Data",
        "Hardware",
        "Workers",
        "Options",
    ]
    flags = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, flags=re.MULTILINE)
    assert len(flags) == len(set(flags)) > 15


def test_paragraphs_and_examples_stay_as_they_are(capsys):
    assert "    lm perplexity runs/novel held-out.txt\n" in shown(capsys, "perplexity")


def test_the_environment_changes_no_help(capsys, monkeypatch):
    before = shown(capsys, "train")
    monkeypatch.setenv("LM_STEPS", "7")
    assert shown(capsys, "train") == before


def test_completion_shows_the_first_sentence():
    assert _summarize("Write a page. It needs nothing else. [default: none]") == "Write a page"
    assert _summarize("Tables [model] and so on.") == "Tables \\[model] and so on"
    assert len(_summarize("word " * 100)) <= 70
