"""Where two texts stop being translations of each other line by line, estimated from the lengths of their lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_OFFSETS = 8  # the most lines that are sought as missing one by one, in different places
_SHIFT = 3.0  # what a shift costs: as much as some fifteen lines that fit badly
_WORST = 4.0  # the most that one line counts, however badly it fits


def first_shift(longer: Sequence[int], shorter: Sequence[int]) -> int:
    """How many lines, from the first on, belong together in two texts of which one has more lines.

    A sentence and its translation are of similar length; lines that don't belong together are not. A line and its
    counterpart fit the better, the nearer the logarithm of the ratio of their lengths is to the median over all lines.
    The longer text is shifted by one line at a time, or once by all surplus lines, at the places where all lines
    together fit best. The answer is the first of these places; it may be a few lines off, as neighbouring lines may be
    of similar length.

    Args:
        longer: the length of each line of the text that has more lines.
        shorter: the length of each line of the other text.

    Returns:
        A number from 0 to that of all lines of the shorter text, which it is if the end of that text is missing.

    Source: Gale and Church 1993 (the lengths of translations), Viterbi 1967 (the best sequence of shifts).
    """
    lines, surplus = len(shorter), len(longer) - len(shorter)
    if not lines:
        return 0
    more, less = (np.log1p(np.asarray(lengths, dtype=np.float64)) for lengths in (longer, shorter))
    usual = float(np.median(more[:lines] - less))
    offsets = [*range(min(surplus, _OFFSETS) + 1), *([surplus] if surplus > _OFFSETS else [])]
    totals = [_fit(more[offset : offset + lines], less, usual) for offset in offsets]
    return _first_shift_of_best_path(totals)


def _fit(more: Floats, less: Floats, usual: float) -> Floats:
    """(lines + 1,) how well the first 0, 1, … lines fit, summed; 0 is best."""
    return np.append(0.0, -np.cumsum(np.minimum((more - less - usual) ** 2, _WORST)))


def _first_shift_of_best_path(totals: list[Floats]) -> int:
    """The first shift of the best path from offset 0 on through offsets that only grow."""
    best, first = totals[0], np.full(len(totals[0]), len(totals[0]) - 1)
    score, answer = best[-1], int(first[-1])
    for number, total in enumerate(totals[1:]):
        gains = best - total - _SHIFT  # of shifting after so many lines
        highest = np.maximum.accumulate(gains)
        place = np.maximum.accumulate(np.where(gains == highest, np.arange(len(gains)), 0))
        first = place if number == 0 else first[place]
        best = highest + total
        if best[-1] > score:
            score, answer = best[-1], int(first[-1])
    return answer
