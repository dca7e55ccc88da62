"""Where two texts stop being translations of each other line by line, told by the lengths of their lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_OFFSETS = 8  # lines that may go missing in different places, one by one
_SHIFT = 3.0  # what a shift must gain: about as much as fifteen lines that fit ill
_WORST = 4.0


def first_shift(longer: Sequence[int], shorter: Sequence[int]) -> int:
    """How many lines, from the first on, belong together, of two texts of which one has more lines.

    A sentence and its translation are of similar length; lines that don't belong together are not. A line fits as well
    as the logarithm of the ratio of its lengths is near the median of all. What is sought is the way of shifting the
    longer text by one line after another (or by all that it has too many, at once) under which the lines fit best
    altogether; its first shift is the answer, to within a few lines, as neighbours may be alike in length.

    Args:
        longer: length of each line of the text that has more lines.
        shorter: of the other.

    Returns:
        A number from 0 to the lines of the shorter text; the latter if its end is what is missing.

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
    """(lines + 1,) how well lines fit each other, summed over the first 0, 1, … of them; 0 is best."""
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
