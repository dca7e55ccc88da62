"""The top k logits of each row and their log-probabilities, with each row processed while it is in the CPU cache."""

from __future__ import annotations

import numpy as np

from lm.kernels.jit import njit
from lm.kernels.reductions import exp_and_sum, maximum

_BLOCK = 64
"""Adjacent numbers whose maximum is computed first: few blocks hold one of the top k."""
_BYTES = 4


@njit
def _insert(value, position, values, indices, count):
    """Insert a number into the top k so far, behind equal ones; return how many there are."""
    at = min(count, len(values) - 1)
    while at and values[at - 1] < value:
        values[at], indices[at] = values[at - 1], indices[at - 1]
        at -= 1
    values[at], indices[at] = value, position
    return min(count + 1, len(values))


@njit
def _top_k_of_row(scores, values, indices):
    """Fill `values` and `indices` with the top k, in order; of equal ones the first one first."""
    count, last, begin_of_scores = 0, len(values) - 1, scores.ctypes.data
    for begin in range(0, len(scores), _BLOCK):
        end = min(begin + _BLOCK, len(scores))
        if count > last and maximum(begin_of_scores + _BYTES * begin, end - begin) <= values[last]:
            continue
        for i in range(begin, end):
            if count <= last or scores[i] > values[last]:
                count = _insert(scores[i], i, values, indices, count)


@njit(is_entry=True, nogil=True)
def top_k(logits, filtered, values, indices, logprobs):
    """Find the top k filtered logits of each row, the first of equal ones first, and their log-probabilities.

    Args:
        logits: (rows, n) float32, unfiltered; they give the log-probabilities.
        filtered: (rows, n) float32.
        values: (rows, k) float32, output; k is at most n.
        indices: (rows, k) int64, output.
        logprobs: (rows, k) float32, output.
    """
    number = logits.shape[1]
    for row in range(len(logits)):
        _top_k_of_row(filtered[row], values[row], indices[row])
        of_row = logits.ctypes.data + _BYTES * row * number
        row_maximum = maximum(of_row, number)
        normaliser = row_maximum + np.log(exp_and_sum(of_row, number, row_maximum, 0))
        for i in range(len(indices[row])):
            logprobs[row, i] = logits[row, indices[row, i]] - normaliser
