"""Lines, tables, progress, curves and heat maps fit a terminal, command none, and are plain and whole in a pipe."""

import math
import unicodedata

import pytest
from rich.cells import cell_len

from cli.console import (
    figures,
    format_bytes,
    format_count,
    format_duration,
    format_perplexity,
    format_value,
    is_colour_enabled,
    print_labelled,
    print_note,
    print_paragraph,
)
from cli.console.figures import plot_curves, print_heat_map, print_table, show_counter

LONG = "300 steps of 8 x 128 tokens: 5.2 epochs, 0.0627 tokens of text a parameter, 1.84 TFLOPs, and so on and on"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width, terminal):
    screen = terminal(width)
    print_labelled("plan", LONG)
    print_paragraph(LONG)
    print_table(("name", "size", "std error", "text"), [("이름", "1.5 MB", "0.1", LONG), ("b", "–", "9", "x")])
    assert max(map(cell_len, screen.lines)) <= width
    assert " ".join(screen.getvalue().split()).startswith(f"plan {LONG} {LONG}")
    assert sum("steps" in line for line in screen.lines) == 3


def test_a_pipe_gets_a_line_for_each(capsys):
    print_labelled("plan", LONG)
    print_note("wrote a\x1bb.txt")
    print_paragraph(LONG)
    print_table(("이름", "number", "note"), [("한국어.txt", "5", LONG), ("a", "1,234", "고양이")])
    output = capsys.readouterr()
    assert output.err == f"plan    {LONG}\nwrote a␛b.txt\n"
    table = f"이름        number  note\n한국어.txt       5  {LONG}\na            1,234  고양이\n"
    assert output.out == f"{LONG}\n{table}"


def test_a_pipe_sees_the_number_now_and_then(capsys, monkeypatch):
    with show_counter("scoring", "pairs") as watch:
        watch(1234)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(figures, "NOTE_SECONDS", 0.0)
    for total in (None, 5678):
        with show_counter("scoring", "pairs", total=total) as watch:
            watch(1234)
    assert capsys.readouterr().err == "scoring: 1,234 pairs\nscoring: 1,234 of 5,678 pairs\n"


def area(drawing: str, height: int) -> list[str]:
    return [line.split("▏", 1)[1] for line in drawing.splitlines()[1 : 1 + height]]


def dots(rows: list[str]) -> set[tuple[int, int]]:
    """Column and line of each dot, by Unicode's names of Braille patterns (dots 1, 2, 3, 7 on the left, from above)."""
    place = {"1": (0, 0), "2": (0, 1), "3": (0, 2), "7": (0, 3), "4": (1, 0), "5": (1, 1), "6": (1, 2), "8": (1, 3)}
    numbers = {
        (column, line): unicodedata.name(character).partition("DOTS-")[2]
        for line, row in enumerate(rows)
        for column, character in enumerate(row)
        if character != " "
    }
    return {
        (2 * column + place[dot][0], 4 * line + place[dot][1])
        for (column, line), shown in numbers.items()
        for dot in shown
    }


HILL = [*range(8), *range(7, -1, -1)]


def test_each_value_has_the_dot_at_its_place():
    drawing = plot_curves({"a": (range(16), HILL)}, title="loss", width=11, height=2, colour=False)
    assert dots(area(drawing, 2)) == {(x, 7 - y) for x, y in enumerate(HILL)}
    title, *rows, axis, legend = drawing.splitlines()
    assert [title, *(row[:3] for row in rows), axis, legend] == ["loss", "7 ▏", "0 ▏", "   0     15", "⠤ a"]


ROWS = ("The", "숲에서", "e\u0301te", "狐", "</s>")


@pytest.fixture
def heat_map(monkeypatch, capsys):
    """Returns the lines of a heat map in a terminal of a width."""

    def draw(*values, width: int = 80) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        print_heat_map(*values)
        return capsys.readouterr().out.splitlines()

    return draw


def test_spaces_are_visible_empty_rows_are_left_out_and_half_a_percent_is_shown(heat_map):
    values = ["a b", "cd", "e\nf"], [" x", "yz", "w"], [[0.006, 0.004, 1], [None] * 3, [None, 0.13, 0]]
    assert heat_map(*values) == ["", "      ␣  y", "      x  z  w", "a␣b   1  ·100", "e␊f     13  ·"]
    assert heat_map(*values, width=11)[3:] == ["a␣b   1  ·", "e␊f     13", "", "      w", "a␣b 100", "e␊f   ·"]
    assert heat_map([], [], []) == []


def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(heat_map):
    columns = [f"w{number}" for number in range(40)]
    lines = heat_map(ROWS, columns, [[0.01 * (column % 90 + 10) for column in range(40)] for _ in ROWS], width=30)
    assert all(cell_len(line) <= 30 for line in lines)
    numbers = [cell for line in lines if line.lstrip().startswith("The ") for cell in line.split()[1:]]
    assert numbers == [str(column + 10) for column in range(40)]


def test_a_cell_is_the_lighter_the_greater_its_number(heat_map, monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", "truecolor")):
        monkeypatch.setenv(name, value)
    *_, row = heat_map(["a"], ["b", "c"], [[0, 1]])
    assert row == "a \x1b[38;2;255;255;255;48;2;0;0;0m  ·\x1b[0m\x1b[38;2;0;0;0;48;2;255;150;70m100\x1b[0m"


def test_no_color_and_dumb_terminals_are_respected(monkeypatch, terminal):
    terminal(80)
    assert is_colour_enabled()
    for name, value, enabled in (("TERM", "dumb", False), ("FORCE_COLOR", "1", True), ("NO_COLOR", "1", False)):
        monkeypatch.setenv(name, value)
        assert is_colour_enabled() == enabled


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_count(0), "0"), (format_count(124_439_808), "124M"), (format_count(3.3e18), "3.3E"),
        (format_count(999_400), "999k"), (format_count(999_500), "1M"), (format_count(-4096), "-4.1k"),
        (format_count(0.123456), "0.123"), (format_bytes(812), "812 B"),
        (format_bytes(798e6), "798 MB"),
        (format_duration(8.14), "8.1 s"), (format_duration(60), "1:00"), (format_duration(3599.6), "1:00:00"),
        (format_perplexity(19.99), f"{math.exp(19.99):.2f}"), (format_perplexity(1000.0), "over 1e8"),
        (format_value(None, 2), "–"), (format_value(12_345.6, 1), "12,345.6"), (format_value(1e6, 3), "1e+06"),
    ],
)  # fmt: skip
def test_numbers_are_short(shown, expected):
    assert shown == expected
