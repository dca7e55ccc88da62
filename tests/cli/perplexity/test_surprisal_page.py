"""The page is whole, escaped and self-contained."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from tests.cli.perplexity.conftest import WIDE


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
