"""The page is whole, escaped and self-contained."""

from __future__ import annotations

import re
import zlib
from base64 import b64decode

import numpy as np

from tests.cli.attention.pages import Cells


def test_a_page_needs_nothing_else_and_has_all_heads(succeed, gpt, tmp_path):
    succeed("attention", gpt, "The <b>owl</b> & 狐", "-o", tmp_path / "a.html")
    source = (tmp_path / "a.html").read_text()
    page = Cells(source)
    assert page.open == []
    assert not re.search(r"https?:|<script|<link|<b>", source)
    assert page.titles[0] == "<s> → <s>: 100.0%"
    assert page.titles[1:5] == [None] * 4
    assert len(page.titles) == 5 * 5
    assert len(page.pictures) == 3 * 2
    data = b64decode(page.pictures[0].partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = int.from_bytes(data[data.index(b"IDAT") - 4 : data.index(b"IDAT")])
    dots = zlib.decompress(data[data.index(b"IDAT") + 4 :][:size])
    assert len(dots) == 5 * (1 + 4 * 5)
    alpha = np.frombuffer(dots, dtype=np.uint8).reshape(5, 21)[:, 1:].reshape(5, 5, 4)[..., 3]
    assert (alpha == 255 * np.tri(5)).all()
