"""Text by surprisal: token by token, with and without colours, and as a page that is escaped and self-contained."""

import json
import math
import re
import sys
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len

from cli.main import run
from cli.perplexity import surprisal_page
from cli.perplexity.surprisal import LEVELS, find_level, format_ranges, render_coloured, render_digits
from lm.evaluation.perplexity import FileScore, PerplexityResult
from lm.evaluation.surprisal import TextSpan
from tests.cli.perplexity.conftest import WIDE
from tests.cli.small_runs import TEXT
from tests.cli.terminal import Terminal


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


def bits(*values: float, file: int = 0, document: int = 0, text: str = "ab ") -> list[TextSpan]:
    return [TextSpan(file, document, text, 1, value * math.log(2)) for value in values]


def test_digits_are_rounded_bits_and_a_plus_from_nine_and_a_half():
    shown = "".join(render_digits(bits(0.4, 0.6, 9.4, 9.6, math.nan), ["a.txt"], width=9))
    assert shown.splitlines()[1:] == ["ab ab ab ", "0  1  9", "ab ab ", "+  ·"]


def test_a_mark_stands_beneath_the_first_line_of_a_token_alone():
    (span,) = bits(3, text="a\nb")
    assert [*render_digits([span], ["a.txt"], width=80)][1:] == ["a↵\n3\n", "b\n\n"]


HEADINGS = [*bits(1), *bits(1, document=1), *bits(1, file=1), *bits(1, file=1, document=2)]


def test_files_and_later_documents_have_headings():
    def headings(names: list[str]) -> list[str]:
        return [line for line in "".join(render_digits(HEADINGS, names, width=80)).splitlines() if line[0] == "─"]

    assert headings(["a", "b\x1b"]) == ["── a ──", "── document 2 ──", "── b␛ ──", "── document 3 ──"]
    assert headings(["a"]) == ["── document 2 ──", "── document 3 ──"]


def test_colours_are_those_of_the_levels_and_lines_end_between_tokens():
    _, *rows = "".join(render_coloured(bits(0.5, 1.5, 5), ["a.txt"], width=8)).splitlines()
    assert rows == ["\x1b[2mab \x1b[0mab ", "\x1b[38;5;16;48;5;222mab \x1b[0m"]
    _, row = "".join(render_coloured(bits(0.5, 1.5, 5), ["a.txt"], width=9)).splitlines()
    assert row == "\x1b[2mab \x1b[0mab \x1b[38;5;16;48;5;222mab \x1b[0m"
    _, *lines = "".join(render_coloured([*bits(1.5, text="a\nbc"), *HEADINGS[:2]], ["a.txt"], width=5)).splitlines()
    assert lines == ["a↵", "bcab ", "\x1b[1m── document 2 ──\x1b[0m", "ab "]


def test_a_page_has_blocks_headings_and_what_each_token_costs():
    spans = [TextSpan(0, 0, "a<b\n", 2, 1.5 * math.log(2)), TextSpan(0, 0, "c", 1, 20 * math.log(2)),
             TextSpan(0, 1, "d", 1, math.nan), TextSpan(1, 0, "e", 1, 0.0)]  # fmt: skip
    block = '<div class="text" dir="auto">'
    assert "".join(surprisal_page.render_body(spans, ["f&1", "f2"])) == (
        f"<h2>f&amp;1</h2>\n{block}"
        '<i class="l1" data-t="&#x27;a&lt;b↵&#x27; · 1.50 bits · 1.04 nats · 2 tokens">a&lt;b<u>↵</u>\n</i>'
        '<i class="l7" data-t="&#x27;c&#x27; · 20.00 bits · 13.86 nats">c</i></div>\n'
        f'<h2>document 2</h2>\n{block}<i class="l0" data-t="&#x27;d&#x27; · not scored">d</i></div>\n'
        f'<h2>f2</h2>\n{block}<i class="l0" data-t="&#x27;e&#x27; · 0.00 bits · 0.00 nats">e</i></div>\n'
    )


def test_a_long_text_is_in_blocks_that_end_with_lines():
    line = [TextSpan(0, 0, "x" * 500, 1, 1.0), TextSpan(0, 0, "\n", 1, 1.0)]
    blocks = "".join(surprisal_page.render_body(line * 100, ["a"])).split('<div class="text" dir="auto">')[1:]
    assert len(blocks) > 3
    assert all(block.endswith("\n</i></div>\n") for block in blocks)
    assert sum(block.count("<i ") for block in blocks) == 200
    one = "".join(surprisal_page.render_body(line[:1] * 100, ["a"]))
    assert one.count("<div") == one.count("</div>") == 1  # without line ends there is no place to part it


def test_a_page_ends_with_the_figures_of_files_and_their_total():
    result = PerplexityResult(tokens=2000, bytes=4000, nats=2000.0)
    for count, names in ((1, ["a&amp;b"]), (2, ["a&amp;b", "a&amp;b", "total"])):
        closing = surprisal_page.render_closing([FileScore("a&b", result)] * count, result)
        rows = re.findall(r"<tr><td>(.*?)</td></tr>", closing)
        assert [row.split("</td><td>") for row in rows] == [
            [name, "2,000", "4,000", "2.72", "0.7213"] for name in names
        ]


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


class Page(HTMLParser):
    """The text of a page, what its spans say of themselves, and its tags."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.titles, self.open, self.tags = "", [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
        if tag == "i" and "data-t" in dict(attrs):
            self.titles.append(dict(attrs)["data-t"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "i" in self.open and "u" not in self.open and self.titles:
            self.text += data


def test_the_page_has_the_text_escaped_and_needs_nothing_else(capsys, report, runs, wide, tmp_path):
    out = tmp_path / "new" / "page.html"
    total = report(runs["bpe"], wide, "--html", out)["total"]
    source = out.read_text()
    page = Page(source)
    assert page.open == []
    assert page.text == WIDE.replace("\t", "    ").replace("\x1b", "␛").replace("\x07", "␇")
    assert "<b>" not in source
    assert not re.search(r"https?:|<script|<link|src=", source)
    assert "prefers-color-scheme: dark" in source
    bits = sum(float(re.search(r"· ([0-9.]+) bits", title)[1]) for title in page.titles)
    assert bits == pytest.approx(total["nats"] / math.log(2), abs=0.01 * len(page.titles))
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
