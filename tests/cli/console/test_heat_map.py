import re

import pytest
from rich.cells import cell_len

from cli.console.heat_map import ALL_COLOURS, FEW_COLOURS, NO_COLOURS, HeatMap, draw_heat_map, fraction_colour, is_light

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


def test_more_is_lighter_and_text_is_readable_on_it():
    def luminance(shade):
        linear = [part / 12.92 / 255 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in shade]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    shades = [fraction_colour(percent / 100) for percent in range(101)]
    luminances = [luminance(shade) for shade in shades]
    assert luminances == sorted(luminances)
    for shade, light in zip(shades, luminances, strict=True):
        contrast = (light + 0.05) / 0.05 if is_light(shade) else 1.05 / (light + 0.05)
        assert contrast > 4.4


def test_names_do_nothing_to_the_terminal():
    lines = "".join(draw_heat_map(HeatMap("t", ["a\x1b[2J"], ["b\nc"], [[1.0]]), width=80, colours=NO_COLOURS))
    assert "\x1b" not in lines
    assert "\n" not in lines
