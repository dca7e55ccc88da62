"""Products of a few rows with weights, shared out over threads: each takes some of the outputs.

One thread works where it is: on a busy machine, handing work to a thread and waiting for it takes longer than the work.

For weights of 8 bits, the inputs are rounded to whole numbers of 16 bits, the largest of a row to the largest of them;
products and sums of those are exact. Rounding the weights has changed a product some 250 times as much, and processors
multiply whole numbers several times as fast as floats.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from lm.kernels.scalars import float_of
from lm.kernels.tiles import INPUTS, OUTPUTS, ROWS, most_of, tile_of
from lm.kernels.vectors import SWIGLU, activate

_BLOCK = 8
"""Outputs that are made for all rows before others are."""
_IN_CACHE = 2**17
"""Bytes of inputs that all outputs are made for before others are."""
_POSITIVE = np.int32(2**31 - 1)

_square, _line, _single = tile_of(ROWS, OUTPUTS), tile_of(1, _BLOCK), tile_of(1, 1)
_most_of = njit(cache=True)(most_of)


def _inputs(weights, x):
    """What weights of a type are multiplied with, and what a one of it counts for in each row."""
    raise NotImplementedError("only in compiled code")


@overload(_inputs)
def _inputs_of_type(weights, x):  # noqa: ARG001 (numba goes by the names)
    if weights.dtype == types.float32:
        return lambda weights, x: (x, np.ones(len(x), np.float32))  # noqa: ARG005
    return lambda weights, x: _rounded(x)  # noqa: ARG005


@njit(cache=True)
def _rounded(x):
    """Rows in 16 bits, and what a one of each counts for; of a row that has no numbers that is none."""
    whole, units = np.empty(x.shape, np.int16), np.empty(len(x), np.float32)
    most = np.float32(_most_of(x.shape[1]))
    for row in range(len(x)):
        bits, largest = x[row].view(np.int32), np.int32(0)
        for i in range(len(bits)):  # sizes of floats are in the order of their bits; what is no number is largest
            largest = max(largest, bits[i] & _POSITIVE)
        size = float_of(np.int32(largest))
        units[row], times = size / most, most / size if largest else np.float32(0.0)
        for i in range(len(bits)):
            whole[row, i] = np.int16(np.rint(x[row, i] * times))
    return whole, units


@njit(cache=True)
def _sums(weights, x, out):
    """The sums of all products of each row with each output, in their tiles."""
    outputs, times = len(weights), x.shape[1] // INPUTS
    in_blocks, at_once = outputs // _BLOCK * _BLOCK, max(ROWS, _IN_CACHE // (x.shape[1] * x.itemsize) // ROWS * ROWS)
    for begin in range(0, len(x), at_once):
        end = min(begin + at_once, len(x))
        in_tiles = end - (end - begin) % ROWS
        for block in range(0, in_blocks, _BLOCK):
            for row in range(begin, in_tiles, ROWS):
                for first in range(block, block + _BLOCK, OUTPUTS):
                    _square(weights[first:], x[row:], times, out[row:, first:])
            for row in range(in_tiles, end):
                _line(weights[block:], x[row:], times, out[row:, block:])
        for output in range(in_blocks, outputs):
            for row in range(begin, end):
                _single(weights[output:], x[row:], times, out[row:, output:])


@njit(fastmath={"contract"}, cache=True)
def _outputs(weights, scales, bias, x, units, out, begin, end, add):
    """Outputs `begin` to `end` of each row of `x`, written to `out` or added to it."""
    found = np.empty((len(x), end - begin), np.float32)
    _sums(weights[begin:end], x, found)
    for row in range(len(x)):
        of_row, to = found[row], out[row, begin:end]
        for i in range(x.shape[1] // INPUTS * INPUTS, x.shape[1]):  # those that no tile took
            for output in range(len(of_row)):
                of_row[output] += np.float32(weights[begin + output, i]) * np.float32(x[row, i])
        for output in range(len(of_row)):
            of_row[output] *= units[row]
        for output in range(len(of_row) if len(scales) else 0):
            of_row[output] *= scales[begin + output]
        for output in range(len(of_row) if len(bias) else 0):
            of_row[output] += bias[begin + output]
        if add:
            for output in range(len(of_row)):
                to[output] += of_row[output]
        else:
            to[:] = of_row


@njit(parallel=True, cache=True)
def product(weights, scales, bias, x, out, add, threads):
    """Out = x weightsᵀ · scales + bias, or added to what is there.

    Args:
        weights: (outputs, inputs) float32 or int8.
        scales: (outputs,) float32, or empty.
        bias: (outputs,) float32, or empty.
        x: (rows, inputs) float32.
        out: (rows, outputs) float32.
        add: whether to add.
        threads: how many share the outputs.
    """
    outputs = len(weights)
    taken, units = _inputs(weights, x)
    if threads == 1:
        _outputs(weights, scales, bias, taken, units, out, 0, outputs, add)
    else:
        for part in prange(threads):
            begin, end = outputs * part // threads, outputs * (part + 1) // threads
            _outputs(weights, scales, bias, taken, units, out, begin, end, add)


@njit(cache=True)
def _activated(weights, scales, bias, x, units, out, kind, begin, end):
    width = len(weights) // 2 if kind == SWIGLU else len(weights)
    _outputs(weights, scales, bias, x, units, out, begin, end, False)
    if kind == SWIGLU:
        _outputs(weights, scales, bias, x, units, out, width + begin, width + end, False)
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
        kind: one of `lm.kernels.vectors.ACTIVATIONS`.
        threads: how many share the outputs.
    """
    width = len(weights) // 2 if kind == SWIGLU else len(weights)
    taken, units = _inputs(weights, x)
    if threads == 1:
        _activated(weights, scales, bias, taken, units, out, kind, 0, width)
    else:
        for part in prange(threads):
            begin, end = width * part // threads, width * (part + 1) // threads
            _activated(weights, scales, bias, taken, units, out, kind, begin, end)
