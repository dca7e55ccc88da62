"""Text drawn by surprisal, on terminals with and without colours."""

from __future__ import annotations

import json
import math

from rich.cells import cell_len

from cli.perplexity.surprisal import LEVELS, find_level, format_ranges
from tests.cli.small_runs import TEXT


def test_without_colours_digits_stand_beneath_the_text(succeed, runs, texts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    legend, *lines = succeed("perplexity", runs["bpe"], texts / "a.txt", "--show").splitlines()
    assert "bits per token" in legend
    rows, marks = lines[:-3:2], lines[1:-3:2]
    assert "".join(rows).replace("↵", "\n") == TEXT
    assert all(len(row) <= 40 for row in rows if "狐" not in row)
    tokens = [
        json.loads(line) for line in succeed("perplexity", runs["bpe"], texts / "a.txt", "--per-token").splitlines()
    ]
    first = tokens[0]["nats"] / math.log(2)
    assert marks[0][0] == (str(round(first)) if first < 9.5 else "+")
    assert all(set(row) <= set("0123456789+· ") for row in marks)


def test_digits_stand_beneath_wide_characters(succeed, runs, wide):
    lines = succeed("perplexity", runs["bpe"], wide, "--show").splitlines()
    text, marks = lines[1], lines[2]
    assert text.startswith("한국어 👩‍👩‍👧 e\u0301 <b>&amp;    ␛[31m␇end")
    column = 0
    for character in ["한", "국", "어", " ", "👩‍👩‍👧", " ", "e\u0301"]:
        assert marks[column] != " "
        assert marks[column + 1 : column + cell_len(character)].strip() == ""
        column += cell_len(character)


def test_levels_begin_at_their_bits():
    assert len(format_ranges()) == len(LEVELS)
    bits = [0, 0.99, 1, 3.99, 4, 13.9, 14, 300]
    assert [find_level(value * math.log(2) + 1e-9) for value in bits] == [0, 0, 1, 2, 3, 6, 7, 7]
    assert find_level(math.nan) == 0
