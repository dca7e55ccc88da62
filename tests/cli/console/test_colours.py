"""Colours read on a dark terminal and on a light one: contrast as WCAG 2.1 defines it."""

from __future__ import annotations

import re

import pytest

from cli.console.colours import BANDS, BARS, BLACK, LINES, WHITE, is_colour_enabled
from cli.perplexity import surprisal_page
from cli.perplexity.surprisal import LEVELS

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
