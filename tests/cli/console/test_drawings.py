"""Curves and heat maps fit a terminal; their colours have the contrast that WCAG 2.1 asks for."""

import itertools
import re
import unicodedata

import matplotlib as mpl
import pytest
from rich.cells import cell_len

from cli.console.colours import BANDS, BARS, BLACK, LINES, WHITE, is_colour_enabled
from cli.console.curves import plot_curves, sparkline
from cli.console.heat_map import (
    ALL_COLOURS,
    FEW_COLOURS,
    NO_COLOURS,
    HeatMap,
    detect_colours,
    draw_heat_map,
    fraction_colour,
    is_light,
)
from cli.console.pictures import load_pyplot, save_figure
from cli.perplexity import surprisal_page
from cli.perplexity.surprisal import LEVELS


def area(drawing: str, height: int) -> list[str]:
    return [line.split("▏", 1)[1] for line in drawing.splitlines()[1 : 1 + height]]


def test_a_rising_line_goes_from_bottom_left_to_top_right():
    drawing = plot_curves({"a": ([0, 1], [5.0, 9.0])}, title="loss", width=40, height=6, colour=False)
    rows = area(drawing, 6)
    assert drawing.splitlines()[0] == "loss"
    assert rows[-1][0] != " "
    assert rows[0].rstrip()[-1] != " "
    places = [len(row) - len(row.lstrip()) for row in rows]
    assert places == sorted(places, reverse=True)
    assert drawing.splitlines()[1].startswith("9 ")
    assert drawing.splitlines()[6].startswith("5 ")
    assert drawing.splitlines()[-1].endswith("a")


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
    assert [title, *(row[:3] for row in rows), axis, legend] == ["loss", "7 ▏", "0 ▏", "   0     15", "⠤⠤ a"]


def test_two_values_are_joined_by_a_line():
    drawing = plot_curves({"a": ([10, 25], [-7, 0])}, title="loss", width=12, height=2, colour=False)
    joined = dots(area(drawing, 2))
    assert {x for x, _ in joined} == {*range(16)}
    assert all(abs(y - (7 - 7 * x / 15)) <= 0.5 for x, y in joined)


@pytest.mark.parametrize(
    "points", [([3], [2.0]), ([1, 2, 3], [4.0, 4.0, 4.0]), (range(1000), [i % 7 for i in range(1000)])]
)
def test_any_curve_fits(points):
    drawing = plot_curves({"a": points, "b": ([2], [1.0])}, title="loss", width=50, height=5, colour=False)
    assert max(len(line) for line in drawing.splitlines()) <= 50
    assert len(drawing.splitlines()) == 1 + 5 + 1 + 2


@pytest.mark.parametrize("height", [4, 5, 12])
def test_a_single_point_has_one_label_on_each_axis_and_stands_at_both(height):
    drawing = plot_curves({"a": ([300], [2.5])}, title="loss", width=40, height=height, colour=False)
    assert drawing.count("2.5") == drawing.count("300") == 1
    [line] = [line for line in drawing.splitlines() if "2.5" in line]
    assert line.split("▏", 1)[1].strip()
    axis = drawing.splitlines()[1 + height]
    assert abs(axis.index("300") + 1 - (len(line) - 1)) <= 1


def test_colours_are_only_added_when_asked_for(monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    curves = {"a": ([0, 1], [0.0, 1.0]), "b": ([0, 1], [1.0, 0.0])}
    plain, painted = (plot_curves(curves, title="x", width=30, height=4, colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    for number in LINES[:2]:
        assert f"\x1b[38;5;{number}m" in painted


def test_without_colours_several_curves_have_marks_of_their_own():
    drawing = plot_curves(
        {"a": ([0, 1], [9.0, 9.0]), "b": ([0, 1], [5.0, 5.0])}, title="x", width=30, height=4, colour=False
    )
    top, *_, bottom = area(drawing, 4)
    legend = [line.split() for line in drawing.splitlines()[-2:]]
    assert [name for _, name in legend] == ["a", "b"]
    assert {*top} == {legend[0][0]} != {*bottom} == {legend[1][0]}


def test_a_sparkline_is_as_wide_as_asked_for():
    assert sparkline([1.0], 10) == ""
    assert len(sparkline([1.0, 2.0], 10)) == 1
    assert len(sparkline([1.0, 2.0, 3.0, 4.0], 10)) == 2
    assert len(sparkline(list(range(100)), 10)) == 10


def test_a_sparkline_has_the_last_values_between_their_smallest_and_largest():
    values = [0, 1, 2, 3, 3, 2]
    for scale in (1, -0.5):
        places = {(x, 3 - y if scale > 0 else y) for x, y in enumerate(values)}
        assert dots([sparkline([99.0, *(scale * value for value in values)], 3)]) == places
    assert len(sparkline(values[:5], 9)) == 3


ROWS = ("The", "숲에서", "e\u0301te", "狐", "</s>")

COLUMNS = ("Über", "나는", "internationalisation", "x", "e\u0301te")

SHARES = [[0.1, 0.2, 0.3, 0.399, 0.001], [1, 0, 0, 0, None], [0.5, 0.5, 0, 0, 0], [0.2] * 5, [0.05, 0.05, 0.8, 0.1, 0]]

MAP = HeatMap("title", ROWS, COLUMNS, SHARES)

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def test_numbers_stand_in_columns_whatever_the_script():
    lines = list(draw_heat_map(MAP, width=80, colours=NO_COLOURS))
    assert lines[0] == "title"
    rows = lines[-5:]
    margin = max(map(cell_len, ROWS))
    for line, name in zip(rows, ROWS, strict=True):
        assert line.lstrip().startswith(name)
        label = line[: line.index(name) + len(name)]
        assert cell_len(label) == margin
    cells = [line[line.index(name) + len(name) + 1 :] for line, name in zip(rows, ROWS, strict=True)]
    assert [cell.split() for cell in cells] == [
        ["10", "20", "30", "40", "·"], ["100", "·", "·", "·"], ["50", "50", "·", "·", "·"], ["20"] * 5,
        ["5", "5", "80", "10", "·"],
    ]  # fmt: skip
    assert {len(cell) for cell in cells} == {12, 15}


def test_names_are_written_downwards_above_their_columns():
    lines = list(draw_heat_map(MAP, width=80, colours=NO_COLOURS))[2:-5]
    margin = max(map(cell_len, ROWS)) + 1
    columns = ["", "", "", "", ""]
    for line in lines:
        place, at = [], 0
        for character in line:
            at += cell_len(character)
            place.append((at - 1 - margin) // 3)
            if character != " ":
                columns[place[-1]] += character
    assert columns == ["Über", "나는", "internation⋮", "x", "e\u0301te"]


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


@pytest.mark.parametrize(("width", "room"), [(None, 24), (90, 24), (72, 24), (71, 23), (30, 10), (14, 4), (9, 4)])
def test_names_have_a_third_of_the_line_at_most_24_columns_and_12_lines(width, room):
    names = ["q" * room, "r" * (room + 1)]
    heat_map = HeatMap("t", names, ["x" * 12, "y" * 13], [[1, 1], [1, 1]])
    lines = list(draw_heat_map(heat_map, width=width, colours=NO_COLOURS))
    assert {line.split()[0] for line in lines if "100" in line} == {names[0], "r" * (room - 1) + "…"}
    above = "".join(line for line in lines if "100" not in line)
    assert (above.count("x"), above.count("y"), above.count("⋮")) == (12, 11, 1)


@pytest.mark.parametrize("width", [18, 30, 80])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(width):
    columns = [f"w{number}" for number in range(40)]
    heat_map = HeatMap("t", ROWS, columns, [[0.01 * (column % 90 + 10) for column in range(40)] for _ in ROWS])
    lines = list(draw_heat_map(heat_map, width=width, colours=NO_COLOURS))
    assert all(cell_len(line) <= width for line in lines)
    numbers = [cell for line in lines if line.lstrip().startswith("The ") for cell in line.split()[1:]]
    assert numbers == [str(column + 10) for column in range(40)]


def test_colours_only_paint():
    plain = list(draw_heat_map(MAP, width=80, colours=NO_COLOURS))
    for colours, code in ((FEW_COLOURS, "48;5;"), (ALL_COLOURS, "48;2;")):
        painted = list(draw_heat_map(MAP, width=80, colours=colours))
        assert [ESCAPE.sub("", line).rstrip() for line in painted] == plain
        assert all(code in line for line in painted[-5:])
        assert all(line.count("\x1b[0m") == len(ESCAPE.findall(line)) / 2 for line in painted)


def test_colours_are_those_of_viridis_by_the_square_root_of_the_fraction():
    viridis = [mpl.colormaps["viridis"](tenth / 10)[:3] for tenth in range(11)]
    assert [fraction_colour((tenth / 10) ** 2) for tenth in range(11)] == [
        tuple(round(255 * part) for part in colour) for colour in viridis
    ]


def test_the_ink_is_the_one_with_more_contrast():
    for shade in itertools.product(range(0, 256, 51), repeat=3):
        gained = contrast((0, 0, 0), shade) - contrast((255, 255, 255), shade)
        assert is_light(shade) == (gained > 0) or abs(gained) < 0.4


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


def test_a_terminal_says_how_many_colours_it_has(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert detect_colours() == NO_COLOURS
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for name, colours in (("truecolor", ALL_COLOURS), ("24bit", ALL_COLOURS), ("yes", FEW_COLOURS)):
        monkeypatch.setenv("COLORTERM", name)
        assert detect_colours() == colours


def test_more_is_lighter_and_text_is_readable_on_it():
    shades = [fraction_colour(percent / 100) for percent in range(101)]
    assert (fraction_colour(-0.1), fraction_colour(1.1)) == (shades[0], shades[-1])
    luminances = [luminance(shade) for shade in shades]
    assert luminances == sorted(luminances)
    for shade, light in zip(shades, luminances, strict=True):
        contrast = (light + 0.05) / 0.05 if is_light(shade) else 1.05 / (light + 0.05)
        assert contrast > 4.4


def test_names_do_nothing_to_the_terminal():
    lines = "".join(draw_heat_map(HeatMap("t", ["a\x1b[2J"], ["b\nc"], [[1.0]]), width=80, colours=NO_COLOURS))
    assert "\x1b" not in lines
    assert "\n" not in lines


Shade = tuple[int, int, int]

BACKGROUNDS = ("#000000", "#1e1e1e", "#002b36", "#fdf6e3", "#ffffff")  # with VS Code's and both of Solarized

OF_LINES, OF_TEXT = 3.0, 4.5  # what WCAG asks of graphics and large text, and of text


def in_cube(number: int) -> Shade:
    """Colours 16 to 231 of xterm."""
    assert 16 <= number <= 231
    steps = (0, 95, 135, 175, 215, 255)
    red, rest = divmod(number - 16, 36)
    return steps[red], steps[rest // 6], steps[rest % 6]


def shade(code: str) -> Shade:
    """Of a code like #fff or #ffffff."""
    digits = code[1:] if len(code) == 7 else "".join(2 * digit for digit in code[1:])
    red, green, blue = bytes.fromhex(digits)
    return red, green, blue


def luminance(colour: Shade) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Shade, other: Shade) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_of_known_pairs():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast(shade("#777777"), shade("#fff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("line", LINES)
def test_curves_and_bars_stand_out_on_any_background(line, background):
    assert contrast(in_cube(line), shade(background)) >= OF_LINES


def test_bars_have_no_colour_of_the_theme_and_none_but_those_of_curves():
    numbers = {int(number) for style in BARS.values() for number in re.findall(r"color\((\d+)\)", style)}
    assert numbers <= set(LINES)
    assert {style for style in BARS.values() if not style.startswith("color")} <= {"dim", "none"}


@pytest.mark.parametrize("band", BANDS)
def test_tokens_read_on_their_bands(band):
    assert contrast(in_cube(BLACK), in_cube(band)) >= OF_TEXT


def test_text_reads_on_each_level_of_surprisal():
    painted = [re.fullmatch(r"38;5;(\d+);48;5;(\d+)", step.attributes) for step in LEVELS]
    pairs = [(int(found[1]), int(found[2])) for found in painted if found]
    assert len(pairs) == len(LEVELS) - 2
    for text, background in pairs:
        assert text in (BLACK, WHITE)
        assert contrast(in_cube(text), in_cube(background)) >= OF_TEXT


def test_a_page_reads_by_day_and_by_night():
    by_day, by_night = surprisal_page.render_opening("", "").split("@media")
    for style, colours in ((by_day, surprisal_page._LIGHT), (by_night, surprisal_page._DARK)):
        ink, strong = (shade(re.search(rf"--{name}: (#\w+)", style)[1]) for name in ("ink", "strong"))
        for number, colour in enumerate(colours, 1):
            assert contrast(strong if number >= 6 else ink, shade(colour)) >= OF_TEXT, (number, colour)


def test_a_figure_that_is_saved_takes_no_memory_any_more(tmp_path):
    pyplot = load_pyplot()
    figure = pyplot.figure(figsize=(1, 1))
    save_figure(pyplot, figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert not pyplot.fignum_exists(figure.number)


def test_no_color_and_dumb_terminals_are_respected(monkeypatch):
    monkeypatch.setattr("sys.stdout", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colour_enabled()
    monkeypatch.delenv("NO_COLOR")
    assert is_colour_enabled()
    monkeypatch.setenv("TERM", "dumb")
    assert not is_colour_enabled()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert is_colour_enabled()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colour_enabled()
