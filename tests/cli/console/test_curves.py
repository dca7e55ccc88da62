"""Drawings in a terminal are as large as asked for, and the curve is where its values are."""

from __future__ import annotations

import pytest

from cli.console.colours import LINES
from cli.console.curves import plot_curves, sparkline


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
    assert len(sparkline([1.0, 2.0, 3.0, 4.0], 10)) == 2
    assert len(sparkline(list(range(100)), 10)) == 10
