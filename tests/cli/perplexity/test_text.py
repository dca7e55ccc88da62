"""Text as tokens, in colours, and as a page."""

from __future__ import annotations

import json
import re
import sys

import pytest

from cli.main import run
from tests.cli.small_runs import TEXT
from tests.cli.terminal import Terminal


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_per_token_gives_each_token_its_place_and_surprisal(succeed, report, runs, texts, kind):
    total = report(runs[kind], texts)["total"]
    tokens = [json.loads(line) for line in succeed("perplexity", runs[kind], texts, "--per-token").splitlines()]
    assert set(tokens[0]) == {"file", "document", "index", "offset", "bytes", "token", "text", "nats"}
    assert sum(token["nats"] is not None for token in tokens) == total["tokens"]
    assert sum(token["nats"] is None for token in tokens) == total["unscored"]
    assert sum(token["nats"] or 0 for token in tokens) == pytest.approx(total["nats"])
    for token in tokens:
        if token["file"].endswith("a.txt"):
            data = TEXT.encode()[token["offset"] : token["offset"] + token["bytes"]]
            assert token["text"] == data.decode(errors="replace")


def test_on_a_terminal_the_text_is_coloured_and_no_character_is_split(succeed, runs, wide, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = succeed("perplexity", runs["bpe"], wide, "--show")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "\x1b" not in plain
    assert "한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end↵\n🇰🇷🇩🇪.↵\n" in plain
    painted = re.findall(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", out)
    assert {"한", "👩‍👩‍👧", "e\u0301", "🇰🇷"} <= set(painted)
    assert all(name in painted[:8] for name in [" <1 ", " 4–6 ", " ≥14 "])


def test_a_page_that_fails_leaves_the_old_one(capsys, runs, texts, tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    (texts / "c.txt").write_bytes(b"The \xff owl")
    assert run(["perplexity", str(runs["bpe"]), str(texts), "--html", str(out)]) == 1
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "c.txt", "page.html"]


def test_a_pipe_gets_the_tokens_while_a_terminal_shows_progress(succeed, runs, texts, monkeypatch):
    expected = succeed("perplexity", runs["bpe"], texts, "--per-token")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert succeed("perplexity", runs["bpe"], texts, "--per-token") == expected
