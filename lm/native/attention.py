"""Attention of a few new positions to the keys and values in a cache."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from lm.kernels.vectors import softmax


@njit(fastmath=True, cache=True)
def _head(query, keys, values, biases, scores, out):
    """One head of one query: `biases` are by distance, from that of the last key on; empty for none."""
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


@njit(cache=True)
def _heads(queries, keys, values, rows, positions, biases, window, scores, out, begin, end):
    """Heads `begin` to `end` of all queries' heads."""
    heads = queries.shape[1]
    group = heads // keys.shape[1]
    for index in range(begin, end):
        query, head = index // heads, index % heads
        row, last = rows[query], positions[query] + 1
        first = max(0, last - window) if window else 0
        of_head = biases[head] if len(biases) else biases.ravel()
        _head(
            queries[query, head], keys[row, head // group, first:last], values[row, head // group, first:last],
            of_head, scores[index], out[query, head],
        )  # fmt: skip


@njit(parallel=True, cache=True)
def attend(queries, keys, values, rows, positions, biases, window, scores, out, threads):
    """All heads of all queries; each sees its row up to its own position.

    Args:
        queries: (number, heads, head).
        keys: (rows, kv_heads, room, head).
        values: like `keys`.
        rows: (number,) the row of each query.
        positions: (number,) where it stands.
        biases: (heads, distances) what a distance adds to the scores, or empty.
        window: how many positions a query sees at most, its own among them; 0 for all.
        scores: (number · heads, longest), to work in.
        out: (number, heads, head).
        threads: how many share the heads.
    """
    number = len(queries) * queries.shape[1]
    if threads == 1:
        _heads(queries, keys, values, rows, positions, biases, window, scores, out, 0, number)
    else:
        for part in prange(threads):
            begin, end = number * part // threads, number * (part + 1) // threads
            _heads(queries, keys, values, rows, positions, biases, window, scores, out, begin, end)
