"""The best of many logits, and their log-probabilities, with each row read while it is in the cache."""

from __future__ import annotations

import numpy as np

from lm.kernels.jit import njit
from lm.kernels.reductions import exp_and_sum, maximum

_BLOCK = 64
"""Numbers next to each other, of which first the maximum alone is looked for: a block seldom has one of the best."""
_BYTES = 4


@njit
def _insert(value, place, values, places, taken):
    """Put a number among the best so far, behind those that are as large; returns how many there are then."""
    at = min(taken, len(values) - 1)
    while at and values[at - 1] < value:
        values[at], places[at] = values[at - 1], places[at - 1]
        at -= 1
    values[at], places[at] = value, place
    return min(taken + 1, len(values))


@njit
def _top_k_of_row(scores, values, places):
    """Fill `values` and `places` with the largest numbers, the largest and the first first."""
    taken, last, begin_of_scores = 0, len(values) - 1, scores.ctypes.data
    for begin in range(0, len(scores), _BLOCK):
        end = min(begin + _BLOCK, len(scores))
        if taken > last and maximum(begin_of_scores + _BYTES * begin, end - begin) <= values[last]:
            continue
        for i in range(begin, end):
            if taken <= last or scores[i] > values[last]:
                taken = _insert(scores[i], i, values, places, taken)


@njit(nogil=True)
def top_k(logits, filtered, values, places, logprobs):
    """The largest filtered logits of each row, the first of equal ones first, and the log-probabilities before filters.

    Args:
        logits: (rows, n) float32.
        filtered: as many.
        values: (rows, k) float32, to be filled; k is at most n.
        places: (rows, k) int64, to be filled.
        logprobs: (rows, k) float32, to be filled.
    """
    number = logits.shape[1]
    for row in range(len(logits)):
        _top_k_of_row(filtered[row], values[row], places[row])
        of_row = logits.ctypes.data + _BYTES * row * number
        most = maximum(of_row, number)
        less = most + np.log(exp_and_sum(of_row, number, most, 0))
        for i in range(len(places[row])):
            logprobs[row, i] = logits[row, places[row, i]] - less
