"""Attention of one new position in each row to the keys and values in a cache."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from lm.native.vectors import softmax


@njit(fastmath=True, cache=True)
def _head(query, keys, values, biases, scores, out):
    """One head of one row: `biases` are by distance, from that of the last key on; empty for none."""
    length, width = keys.shape
    scale = np.float32(1.0) / np.sqrt(np.float32(width))
    for t in range(length):
        total = np.float32(0.0)
        for j in range(width):
            total += query[j] * keys[t, j]
        scores[t] = total * scale
    if len(biases):
        for t in range(length):
            scores[t] += biases[length - 1 - t]
    softmax(scores[:length])
    for j in range(width):
        out[j] = np.float32(0.0)
    for t in range(length):
        for j in range(width):
            out[j] += scores[t] * values[t, j]


@njit(parallel=True, cache=True)
def attend(queries, keys, values, biases, begin, end, scores, out, threads):
    """All heads of all rows.

    Args:
        queries: (rows, heads, head).
        keys: (rows, kv_heads, room, head), of which positions `begin` to `end` are seen.
        values: like `keys`.
        biases: (heads, room) what a distance adds to the scores, or empty.
        begin: the first position that is seen.
        end: the position after the new one.
        scores: (rows · heads, room), to work in.
        out: (rows, heads, head).
        threads: how many share the heads.
    """
    rows, heads, _ = queries.shape
    group, number = heads // keys.shape[1], rows * heads
    for part in prange(threads):
        for index in range(number * part // threads, number * (part + 1) // threads):
            row, head = index // heads, index % heads
            of_head = biases[head] if len(biases) else biases.ravel()
            _head(
                queries[row, head], keys[row, head // group, begin:end], values[row, head // group, begin:end],
                of_head, scores[index], out[row, head],
            )  # fmt: skip
