"""What a web page of maps holds, as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser


class Cells(HTMLParser):
    """The numbers, titles and pictures of a page, and what is left open at its end."""

    def __init__(self, source):
        super().__init__()
        self.open, self.titles, self.pictures = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "img":
            self.pictures.append(values["src"])
        elif tag != "meta":
            self.open.append(tag)
        if tag == "td":
            self.titles.append(values.get("title"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
