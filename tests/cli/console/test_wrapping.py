"""Lines fit a terminal, and lose nothing but the spaces they are broken at."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from cli.console.messages import wrap_hanging

LINE = "plan    80 steps of 8 x 128 tokens: 1.4 epochs, 고양이가 매트 위에 앉았다 고양이가, 491 GFLOPs"


@pytest.mark.parametrize("width", [20, 30, 47, 80])
@pytest.mark.parametrize("indent", [0, 8])
def test_no_line_is_wider_than_the_terminal(width, indent):
    lines = wrap_hanging(LINE, width=width, indent=indent).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert all(line.startswith(" " * indent) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(LINE.split())


def test_a_line_that_fits_is_left_alone():
    assert wrap_hanging("a  b ", width=5) == "a  b "


def test_a_word_longer_than_the_terminal_is_cut():
    assert wrap_hanging("x" * 25, width=10) == "\n".join(["x" * 10, "x" * 10, "x" * 5])
