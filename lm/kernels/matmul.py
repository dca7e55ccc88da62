"""Products of rows with weights, shared out over threads: each takes some of the outputs.

One thread works where it is: on a busy machine, handing work to a thread and waiting for it takes longer than the work.

For weights of 8 bits, the inputs are rounded to whole numbers of 16 bits, the largest of a row to the largest of them;
products are exact, and sums of 512 of them. Rounding the weights has changed a product some 250 times as much, and
processors multiply whole numbers several times as fast as floats. A few rows are multiplied in tiles, many in panels.
"""

from __future__ import annotations

import numpy as np
from numba import prange, types
from numba.extending import overload

from lm.kernels import panels
from lm.kernels.jit import njit
from lm.kernels.scalar_math import as_variable, float_from_bits
from lm.kernels.simd import INPUTS
from lm.kernels.tiles import MOST_INPUTS, OUTPUTS, ROWS, build_tile_kernel
from lm.kernels.vector_ops import SWIGLU, activate

_LINE = 8
"""Outputs that are made of one row at a time."""
_SUMS = 2**15
"""That are made before others are, so that they stay near."""
_IN_CACHE = 2**17
"""Bytes of inputs that all outputs are made for before others are."""
_MANY, MANY_FLOATS = 2 * panels.ROWS, 72
"""Rows that pay for laying out weights anew. Of floats they are more than are generated side by side: panels add them
in another order than tiles do, and a text is to be the same beside any others, to the last bit."""
_MOST = np.float32(2**15 - 1)
_POSITIVE = np.int32(2**31 - 1)

_square, _line, _single = build_tile_kernel(ROWS, OUTPUTS), build_tile_kernel(1, _LINE), build_tile_kernel(1, 1)


def _quantise_inputs(weights, x):
    """What weights of a type are multiplied with, and what a one of it counts for in each row."""
    raise NotImplementedError("only in compiled code")


@overload(_quantise_inputs)
def _quantise_inputs_of_dtype(weights, x):
    if weights.dtype == types.float32:
        return lambda weights, x: (x, np.ones(len(x), np.float32))
    return lambda weights, x: _round_to_int16(x)


@njit
def _round_to_int16(x):
    """Rows in 16 bits, and what a one of each counts for; of a row that has no numbers that is none."""
    whole, units = np.empty(x.shape, np.int16), np.empty(len(x), np.float32)
    for row in range(len(x)):
        bits, largest = x[row].view(np.int32), np.int32(0)
        for i in range(len(bits)):  # sizes of floats are in the order of their bits; what is no number is largest
            largest = max(largest, bits[i] & _POSITIVE)
        size = float_from_bits(np.int32(largest))
        units[row], times = size / _MOST, _MOST / size if largest else np.float32(0.0)
        for i in range(len(bits)):
            whole[row, i] = np.int16(np.rint(x[row, i] * times))
    return whole, units


@njit
def _accumulate_tiles(weights, x, sums, first, times):
    """Add the sums of products of some inputs, in tiles."""
    outputs, in_tiles = len(weights) // _LINE * _LINE, len(x) // ROWS * ROWS
    for block in range(0, outputs, _LINE):
        for row in range(0, in_tiles, ROWS):
            for output in range(block, block + _LINE, OUTPUTS):
                _square(weights, x, sums, output, row, first, times)
        for row in range(in_tiles, len(x)):
            _line(weights, x, sums, block, row, first, times)
    for output in range(outputs, len(weights)):
        for row in range(len(x)):
            _single(weights, x, sums, output, row, first, times)


@njit(fastmath={"contract"})
def _accumulate_remainder(weights, x, first, sums):
    """Add the products of the inputs from the first on, too few for a tile."""
    for row in range(len(x)):
        for i in range(first, x.shape[1]):
            for output in range(len(weights)):
                sums[row, output] += np.float32(weights[output, i]) * np.float32(x[row, i])


@njit
def _compute_outputs(weights, scales, bias, x, units, out, begin, end, add):
    """Outputs `begin` to `end` of each row of `x`, written to `out` or added to it."""
    rows, is_float = 0, x.itemsize == 4
    many, most = (MANY_FLOATS, MOST_INPUTS) if is_float else (_MANY, x.shape[1])  # panels of more floats are too large
    if len(x) >= many and x.shape[1] <= most and x.shape[1] % INPUTS == 0:
        rows, columns = len(x) // panels.ROWS * panels.ROWS, (end - begin) // panels.OUTPUTS * panels.OUTPUTS
        _compute_by_panels(weights, scales, bias, x[:rows], units, out, begin, begin + columns, add)
        _compute_by_tiles(weights, scales, bias, x[:rows], units, out, begin + columns, end, add)
    _compute_by_tiles(weights, scales, bias, x[rows:], units[rows:], out[rows:], begin, end, add)


@njit
def _rows_per_block(x):
    """How many rows all outputs are made for before others are: a multiple of those of a panel."""
    return max(_MANY, _IN_CACHE // (x.shape[1] * x.itemsize) // panels.ROWS * panels.ROWS)


@njit
def _compute_by_panels(weights, scales, bias, x, units, out, begin, end, add):
    """The same of whole numbers of panels and of their rows."""
    times, in_32_bits = x.shape[1] // INPUTS, 4 // x.itemsize
    panel = np.empty((x.shape[1] // in_32_bits, in_32_bits * panels.OUTPUTS), x.dtype)
    at_once = _rows_per_block(x)
    shifts = bias if len(bias) else np.zeros(len(weights), np.float32)
    for first_row in range(0, len(x), at_once):
        for output in range(begin, end, panels.OUTPUTS):
            panels.pack_panel(weights, output, times, panel)
            for row in range(first_row, min(first_row + at_once, len(x)), panels.ROWS):
                panels.multiply_panel(panel, x, units, scales, shifts, out, output, row, times, add)


@njit
def _compute_by_tiles(weights, scales, bias, x, units, out, begin, end, add):
    """The same of any number."""
    if len(x) == 0:
        return
    inputs = x.shape[1] // INPUTS * INPUTS
    at_once = _rows_per_block(x)
    outputs = max(_SUMS // min(at_once, len(x)) // panels.OUTPUTS, 1) * panels.OUTPUTS
    room = np.empty((min(at_once, len(x)), min(outputs, end - begin)), np.float32)
    for row in range(0, len(x), at_once):
        of_rows = x[row : row + at_once]
        for first in range(begin, end, outputs):
            last = min(first + outputs, end)
            sums, of_outputs = room[: len(of_rows), : last - first], weights[first:last]
            room[:] = np.float32(0.0)
            for part in range(0, inputs, MOST_INPUTS):
                times = (min(part + MOST_INPUTS, inputs) - part) // INPUTS
                _accumulate_tiles(of_outputs, of_rows, sums, part, times)
            if inputs < x.shape[1]:
                _accumulate_remainder(of_outputs, of_rows, inputs, sums)
            for index in range(len(of_rows)):
                to = out[row + index, first:last]
                _write_outputs(
                    room[index, : len(to)], scales[first:last], bias[first:last], units[row + index], to, add
                )


@njit
def _write_outputs(sums, scales, bias, unit, out, add):
    """Write the sums of a row to `out` or add them to it, in what they count for, and with what is added to each."""
    for output in range(len(scales)):
        sums[output] = sums[output] * unit * scales[output]
    for output in range(len(bias)):
        sums[output] += bias[output]
    if add:
        for output in range(len(out)):
            out[output] += sums[output]
    else:
        for output in range(len(out)):
            out[output] = sums[output]


@njit(parallel=True)
def matmul(weights, scales, bias, x, out, add, threads):
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
    taken, units = _quantise_inputs(weights, x)
    if threads == 1:
        _compute_outputs(weights, scales, bias, taken, units, out, as_variable(0), outputs, add)
    else:
        for part in prange(threads):
            begin, end = outputs * part // threads, outputs * (part + 1) // threads
            _compute_outputs(weights, scales, bias, taken, units, out, begin, end, add)


@njit
def _matmul_activation(weights, scales, bias, x, units, out, kind, begin, end):
    width = len(weights) // 2 if kind == SWIGLU else len(weights)
    _compute_outputs(weights, scales, bias, x, units, out, begin, end, as_variable(False))
    if kind == SWIGLU:
        _compute_outputs(weights, scales, bias, x, units, out, width + begin, width + end, as_variable(False))
    for row in range(len(x)):
        activate(out[row, begin:end], kind)
        if kind == SWIGLU:
            for i in range(begin, end):
                out[row, i] *= out[row, width + i]


@njit(parallel=True)
def matmul_activation(weights, scales, bias, x, out, kind, threads):
    """The first product of a feed-forward layer and its activation; of SWIGLU the first half of `out` is what counts.

    Args:
        weights: as `matmul` takes them; for SWIGLU those of the gates, and behind them as many others.
        scales: of `weights`.
        bias: of `weights`.
        x: (rows, inputs).
        out: (rows, outputs).
        kind: one of `lm.kernels.vector_ops.ACTIVATIONS`.
        threads: how many share the outputs.
    """
    width = len(weights) // 2 if kind == SWIGLU else len(weights)
    taken, units = _quantise_inputs(weights, x)
    if threads == 1:
        _matmul_activation(weights, scales, bias, taken, units, out, kind, as_variable(0), width)
    else:
        for part in prange(threads):
            begin, end = width * part // threads, width * (part + 1) // threads
            _matmul_activation(weights, scales, bias, taken, units, out, kind, begin, end)
