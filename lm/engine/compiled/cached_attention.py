"""Attention of a few new positions to cached keys and values, of their own past or of a source."""

from __future__ import annotations

import numpy as np
from numba import prange

from lm.kernels.jit import njit
from lm.kernels.reductions import exp_and_sum, gather_dot_products, gather_weighted_sum, maximum
from lm.kernels.scalar_math import as_variable

_BYTES = 4
_BYTES_OF_SLOTS = 8


@njit(error_model="numpy")
def _attend_heads(queries, attention_arrays, scores, out, begin, end):
    """Compute heads `begin` to `end` of all queries; vectors are addresses, as array views are reference-counted."""
    heads, width = queries.shape[1:]
    keys, values, rows, positions, slots, biases, window = attention_arrays
    kv_heads, room = keys.shape[1:3]
    group, scale = heads // kv_heads, np.float32(1.0) / np.sqrt(np.float32(width))
    for index in range(begin, end):
        query, head = index // heads, index % heads
        last = positions[query] + 1
        first = max(0, last - window) if window else 0
        length, slot_row = last - first, (query if len(slots) > 1 else 0)
        of_head = _BYTES * (rows[query] * kv_heads + head // group) * room * width
        of_query, of_keys = queries.ctypes.data + _BYTES * index * width, keys.ctypes.data + of_head
        of_slots = slots.ctypes.data + _BYTES_OF_SLOTS * (slot_row * slots.shape[1] + first)
        of_scores = scores.ctypes.data
        gather_dot_products(of_query, of_keys, of_slots, length, width, of_scores)
        for t in range(length):
            scores[t] *= scale
        if len(biases):
            for t in range(length):
                scores[t] += biases[head, length - 1 - t]
        scale_of_weights = np.float32(1.0) / exp_and_sum(of_scores, length, maximum(of_scores, length), of_scores)
        to = out.ctypes.data + _BYTES * index * width
        gather_weighted_sum(of_scores, scale_of_weights, of_slots, length, values.ctypes.data + of_head, width, to)


@njit(parallel=True)
def attend(queries, attention_arrays, scores, out, threads):
    """Compute all heads of all queries; each attends to its row up to its own position.

    Args:
        queries: (number, heads, head).
        attention_arrays: see `lm.engine.compiled.decode_step.AttentionArrays`.
        scores: (threads, longest), scratch space.
        out: (number, heads, head).
    """
    number = len(queries) * queries.shape[1]
    if threads == 1:
        _attend_heads(queries, attention_arrays, scores[0], out, as_variable(0), number)
    else:
        for part in prange(threads):
            begin, end = number * part // threads, number * (part + 1) // threads
            _attend_heads(queries, attention_arrays, scores[part], out, begin, end)
