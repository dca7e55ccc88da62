"""Products of a few rows with weights, shared out over threads: each takes some of the outputs.

One thread works where it is: on a busy machine, handing work to a thread and waiting for it takes longer than the work.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from lm.native.scalars import widened
from lm.native.vectors import SWIGLU, activate


@njit(fastmath=True, cache=True)
def _dot(weights, x):
    total = np.float32(0.0)
    for j in range(len(x)):
        total += widened(weights[j]) * x[j]
    return total


@njit(fastmath=True, cache=True)
def _four_dots(weights, x):
    """The products of weights with the first four of (rows, width): each weight is read and widened once."""
    a = b = c = d = np.float32(0.0)
    for j in range(x.shape[1]):
        weight = widened(weights[j])
        a += weight * x[0, j]
        b += weight * x[1, j]
        c += weight * x[2, j]
        d += weight * x[3, j]
    return a, b, c, d


@njit(fastmath=True, cache=True)
def _outputs(weights, scales, bias, x, out, begin, end, add):
    """Outputs `begin` to `end` of each row of `x`, written to `out` or added to it."""
    rows = len(x)
    for i in range(begin, end):
        scale = scales[i] if len(scales) else np.float32(1.0)
        shift = bias[i] if len(bias) else np.float32(0.0)
        row = 0
        while row + 4 <= rows:
            found = _four_dots(weights[i], x[row : row + 4])
            for k in range(4):
                out[row + k, i] = found[k] * scale + shift + (out[row + k, i] if add else np.float32(0.0))
            row += 4
        while row < rows:
            out[row, i] = _dot(weights[i], x[row]) * scale + shift + (out[row, i] if add else np.float32(0.0))
            row += 1


@njit(parallel=True, cache=True)
def product(weights, scales, bias, x, out, add, threads):
    """Out = x weightsᵀ · scales + bias, or added to what is there.

    Args:
        weights: (outputs, inputs) float32, int8, or uint16 with the bits of bfloat16.
        scales: (outputs,) float32, or empty.
        bias: (outputs,) float32, or empty.
        x: (rows, inputs) float32.
        out: (rows, outputs) float32.
        add: whether to add.
        threads: how many share the outputs.
    """
    outputs = len(weights)
    if threads == 1:
        _outputs(weights, scales, bias, x, out, 0, outputs, add)
    else:
        for part in prange(threads):
            _outputs(weights, scales, bias, x, out, outputs * part // threads, outputs * (part + 1) // threads, add)


@njit(cache=True)
def _activated(weights, scales, bias, x, out, kind, begin, end):
    width = len(weights) // 2 if kind == SWIGLU else len(weights)
    _outputs(weights, scales, bias, x, out, begin, end, False)
    if kind == SWIGLU:
        _outputs(weights, scales, bias, x, out, width + begin, width + end, False)
    for row in range(len(x)):
        activate(out[row, begin:end], kind)
        if kind == SWIGLU:
            for i in range(begin, end):
                out[row, i] *= out[row, width + i]


@njit(parallel=True, cache=True)
def activated(weights, scales, bias, x, out, kind, threads):
    """The first product of a feed-forward layer and its activation; of SWIGLU the first half of `out` is what counts.

    Args:
        weights: as `product` takes them; for SWIGLU those of the gates, and behind them as many others.
        scales: of `weights`.
        bias: of `weights`.
        x: (rows, inputs).
        out: (rows, outputs).
        kind: one of `lm.native.vectors.ACTIVATIONS`.
        threads: how many share the outputs.
    """
    width = len(weights) // 2 if kind == SWIGLU else len(weights)
    if threads == 1:
        _activated(weights, scales, bias, x, out, kind, 0, width)
    else:
        for part in prange(threads):
            begin, end = width * part // threads, width * (part + 1) // threads
            _activated(weights, scales, bias, x, out, kind, begin, end)
