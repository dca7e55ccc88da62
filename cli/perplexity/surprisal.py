"""Text rendered by surprisal: in colours for dark and light terminals, or with a digit beneath each token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, log

from rich.cells import cell_len

from cli.console.colours import BLACK, RESET, WHITE
from cli.console.text import LINE_END, escape_controls_and_line_ends
from lm.evaluation.surprisal import TextSpan


@dataclass(frozen=True)
class SurprisalLevel:
    """A level of the colour scale."""

    lower_bits: float
    attributes: str
    """SGR codes: faint, or text and background from the 256-colour palette, which themes don't change."""

    def paint(self, text: str) -> str:
        """Wrap a text in the escape sequences of this level."""
        return f"\x1b[{self.attributes}m{text}{RESET}" if self.attributes else text


def _colour_code(text: int, background: int) -> str:
    return f"38;5;{text};48;5;{background}"


LEVELS = (
    SurprisalLevel(0, "2"),
    SurprisalLevel(1, ""),
    SurprisalLevel(2, _colour_code(BLACK, 187)),
    SurprisalLevel(4, _colour_code(BLACK, 222)),
    SurprisalLevel(6, _colour_code(BLACK, 215)),
    SurprisalLevel(8, _colour_code(BLACK, 209)),
    SurprisalLevel(11, _colour_code(BLACK, 167)),
    SurprisalLevel(14, _colour_code(WHITE, 89)),
)
"""From expected to surprising. The colours grow darker too, so that the colour-blind can tell them apart."""


def nats_to_bits(nats: float) -> float:
    return nats / log(2)


def find_level(nats: float) -> int:
    """Return the level index of a surprisal; the first for NaN."""
    return 0 if isnan(nats) else bisect_right(LEVELS, nats_to_bits(nats), key=lambda level: level.lower_bits) - 1


def format_ranges() -> list[str]:
    """Return the range of each level, in bits."""
    limits = [f"{level.lower_bits:g}" for level in LEVELS]
    return [f"<{limits[1]}", *(f"{a}–{b}" for a, b in pairwise(limits[1:])), f"≥{limits[-1]}"]


def render_coloured(spans: Iterable[TextSpan], names: Sequence[str], *, width: int | None = None) -> Iterator[str]:
    """Yield the text with each span in the colour of its surprisal, line ends as arrows.

    With a width, rows end between tokens: a terminal that wraps may fill the rest of a row with the background.
    """
    swatches = (level.paint(f" {name} ") for level, name in zip(LEVELS, format_ranges(), strict=True))
    yield f"bits per token: {' '.join(swatches)}\n"
    column = 0
    for heading, span in _with_headings(spans, names):
        if heading:
            yield "\n" * bool(column) + f"\x1b[1m{heading}{RESET}\n"
            column = 0
        for line in escape_controls_and_line_ends(span.text).splitlines(keepends=True):
            shown = line.replace("\n", LINE_END)
            size = cell_len(shown)
            if width is not None and column and column + size > width:
                yield "\n"
                column = 0
            yield LEVELS[find_level(span.nats)].paint(shown) + "\n" * line.endswith("\n")
            column = 0 if line.endswith("\n") else column + size
    yield "\n" * bool(column)


def render_digits(spans: Iterable[TextSpan], names: Sequence[str], *, width: int) -> Iterator[str]:
    """Yield the text in rows, with the bits of each token as a digit beneath its first character."""
    yield "bits per token beneath its first character (+ for more than 9, · not scored)\n"
    row = _DigitRow(width)
    for heading, span in _with_headings(spans, names):
        if heading:
            yield from row.end()
            yield heading + "\n"
        mark = (
            "·" if isnan(span.nats) else str(round(nats_to_bits(span.nats))) if nats_to_bits(span.nats) < 9.5 else "+"
        )
        for number, line in enumerate(escape_controls_and_line_ends(span.text).splitlines(keepends=True)):
            yield from row.add(line.replace("\n", LINE_END), "" if number else mark)
            if line.endswith("\n"):
                yield from row.end()
    yield from row.end()


class _DigitRow:
    """A row of text and the row of digits beneath it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._text, self._marks, self._column = "", "", 0

    def add(self, text: str, mark: str) -> Iterator[str]:
        """Append text with a digit beneath its beginning; zero-width text gets none."""
        size = cell_len(text)
        if self._column + size > self._width:
            yield from self.end()
        self._text += text
        if size:
            self._marks += mark.ljust(size)
        self._column += size

    def end(self) -> Iterator[str]:
        """Yield the two rows, unless they are empty."""
        if self._text:
            yield f"{self._text}\n{self._marks.rstrip()}\n"
        self._text, self._marks, self._column = "", "", 0


def _with_headings(spans: Iterable[TextSpan], names: Sequence[str]) -> Iterator[tuple[str, TextSpan]]:
    """Yield spans with the heading before them: a file name if there are several, a number for later documents."""
    document = (-1, 0)
    for span in spans:
        heading = ""
        if span.file != document[0] and len(names) > 1:
            heading = f"── {escape_controls_and_line_ends(names[span.file])} ──"
        elif span.file == document[0] and span.document != document[1]:
            heading = f"── document {span.document + 1} ──"
        document = span.file, span.document
        yield heading, span
