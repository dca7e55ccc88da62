"""Lines, tables, progress, curves and heat maps fit a terminal, command none, and are plain and whole in a pipe."""

import math
import unicodedata

import pytest
from rich.cells import cell_len

from cli.console import progress
from cli.console.colours import is_colour_enabled
from cli.console.heat_map import ALL_COLOURS, FEW_COLOURS, NO_COLOURS, HeatMap, draw_heat_map
from cli.console.plots import plot_curves
from cli.console.progress import show_bytes, show_counter
from cli.console.tables import print_table
from cli.console.text import (
    format_count,
    format_duration,
    format_perplexity,
    format_quantity,
    format_value,
    print_labelled,
    print_note,
    print_paragraph,
)

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
    with show_counter("scoring", "pairs") as watch, show_bytes() as show:
        watch(1234)
    assert show is None
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "NOTE_SECONDS", 0.0)
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


@pytest.mark.parametrize(
    "points", [([3], [2.0]), ([1, 2, 3], [4.0, 4.0, 4.0]), (range(1000), [i % 7 for i in range(1000)])]
)
def test_any_curve_fits(points):
    drawing = plot_curves({"a": points, "b": ([2], [1.0])}, title="loss", width=50, height=5, colour=False)
    assert max(len(line) for line in drawing.splitlines()) <= 50
    assert len(drawing.splitlines()) == 1 + 5 + 1 + 2


ROWS = ("The", "숲에서", "e\u0301te", "狐", "</s>")


def test_spaces_are_visible_empty_rows_are_left_out_and_half_a_percent_is_shown():
    heat_map = HeatMap("t", ["a b", "cd", "e\nf"], [" x", "yz", "w"], [[0.006, 0.004, 1], [None] * 3, [None, 0.13, 0]])
    assert list(draw_heat_map(heat_map, width=None, colours=NO_COLOURS)) == [
        "t", "", "      ␣  y", "      x  z  w", "a␣b   1  ·100", "e↵f     13  ·",
    ]  # fmt: skip
    assert list(draw_heat_map(heat_map, width=11, colours=NO_COLOURS))[4:] == [
        "a␣b   1  ·", "e↵f     13", "", "      w", "a␣b 100", "e↵f   ·",
    ]  # fmt: skip
    assert list(draw_heat_map(HeatMap("t", [], [], []), width=80, colours=NO_COLOURS)) == ["t"]
    assert list(draw_heat_map(HeatMap("t", [], ["x"], []), width=80, colours=NO_COLOURS)) == ["t", "", "   x"]


def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost():
    width = 30
    columns = [f"w{number}" for number in range(40)]
    heat_map = HeatMap("t", ROWS, columns, [[0.01 * (column % 90 + 10) for column in range(40)] for _ in ROWS])
    lines = list(draw_heat_map(heat_map, width=width, colours=NO_COLOURS))
    assert all(cell_len(line) <= width for line in lines)
    numbers = [cell for line in lines if line.lstrip().startswith("The ") for cell in line.split()[1:]]
    assert numbers == [str(column + 10) for column in range(40)]


@pytest.mark.parametrize(
    ("colours", "cells"),
    [
        (FEW_COLOURS, ["38;5;231;48;5;54m  ·", "38;5;16;48;5;73m 25", "38;5;16;48;5;227m100"]),
        (ALL_COLOURS, ["38;2;255;255;255;48;2;68;1;84m  ·", "38;2;0;0;0;48;2;33;145;140m 25",
                       "38;2;0;0;0;48;2;253;231;37m100"]),
    ],
)  # fmt: skip
def test_cells_have_the_colours_of_the_terminal(colours, cells):
    *_, row = draw_heat_map(HeatMap("t", ["a"], ["b", "c", "d"], [[0, 0.25, 1]]), width=80, colours=colours)
    assert row == "a " + "".join(f"\x1b[{cell}\x1b[0m" for cell in cells)


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
        (format_count(0.123456), "0.123"), (format_quantity(812, "B"), "812 B"),
        (format_quantity(798e6, "FLOPs"), "798 MFLOPs"),
        (format_duration(8.14), "8.1 s"), (format_duration(60), "1:00"), (format_duration(3599.6), "1:00:00"),
        (format_perplexity(19.99), f"{math.exp(19.99):.2f}"), (format_perplexity(1000.0), "over 1e8"),
        (format_value(None, 2), "–"), (format_value(12_345.6, 1), "12,345.6"), (format_value(1e6, 3), "1e+06"),
    ],
)  # fmt: skip
def test_numbers_are_short(shown, expected):
    assert shown == expected
