"""Tables fit the terminal, are plain in a pipe, and show names as they are."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from cli.console.tables import print_table


def test_a_table_in_a_pipe_is_plain_and_aligned(capsys):
    print_table(("name", "number", "note"), [("a", "5", "x"), ("bcd", "1,234", "yz")])
    assert capsys.readouterr().out == "name  number  note\na          5  x\nbcd    1,234  yz\n"


def test_wide_characters_take_two_places_in_a_table(capsys):
    print_table(("이름", "number", "note"), [("한국어.txt", "5", "x"), ("a", "1,234", "고양이")])
    assert capsys.readouterr().out == "이름        number  note\n한국어.txt       5  x\na            1,234  고양이\n"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_table_is_wider_than_the_terminal(width, terminal):
    screen = terminal(width)
    names = ("name", "size", "std error", "bits/byte", "what it is")
    print_table(
        names, [("이름", "1.5 MB", "0.1", "1.64", "forty thousand lines of plays " * 3), ("b", "–", "9", "2", "x")]
    )
    assert max(map(cell_len, screen.lines)) <= width
    assert " ".join(screen.getvalue().split()).count("plays") == 3


def test_brackets_in_a_table_on_a_terminal_are_no_markup(terminal):
    screen = terminal(80)
    print_table(("file", "n"), [("[red]a.txt", "1"), ("[/b]", "2")])
    assert "[red]a.txt" in screen.getvalue()
    assert "[/b]" in screen.getvalue()
