"""Matmul of activations with float32 or int8 weights, parallelised over outputs.

A single thread runs inline: on a busy machine, dispatching work to a thread takes longer than the work.

For int8 weights, the activations are quantised to int16, scaled by the maximum of each row; products are exact, and
sums of 512 of them. Quantising the weights has some 250 times the error, and processors multiply integers several times
as fast as floats. A few rows are multiplied in tiles, many in packed panels.
"""

from __future__ import annotations

import numpy as np
from numba import prange, types
from numba.extending import overload

from lm.kernels.jit import njit
from lm.kernels.micro_kernels import (
    INPUT_BLOCK,
    LANES,
    MAX_TILE_INPUTS,
    PANEL_OUTPUTS,
    PANEL_ROWS,
    TILE_OUTPUTS,
    TILE_ROWS,
    build_tile_kernel,
    multiply_panel,
    pack_panel,
)
from lm.kernels.vector_ops import as_variable

_OUTPUTS_PER_ROW = 8
"""Outputs computed per row at a time."""
_SUMS_PER_BLOCK = 2**15
"""Sums per block, so that they stay in the CPU cache."""
_BLOCK_BYTES = 2**17
"""Bytes of inputs per block of rows."""
_MIN_PACKED_ROWS, MIN_PACKED_FLOAT_ROWS = 2 * PANEL_ROWS, 72
"""Rows from which packing pays off. For floats more than are generated concurrently: panels sum in another order
than tiles, and a text must be bit-identical in any batch.
"""
_READS_IN_ORDER = LANES == 8
"""Whether the int8 weights of few rows are read one output after another, which from memory is 1.3 to 1.5 times as fast
as eight outputs at a time on a Zen 3 (docs/lab/speed.md). With AVX-512 this has not been measured.
"""
_INT16_MAX = np.float32(2**15 - 1)
_SIGN_MASK = np.int32(2**31 - 1)

_tile, _row_tile, _single_output = (
    build_tile_kernel(*size) for size in ((TILE_ROWS, TILE_OUTPUTS), (1, _OUTPUTS_PER_ROW), (1, 1))
)


def _quantise_inputs(weights, x):
    """Return activations as they are multiplied with weights of a dtype, and the scale of each row."""
    raise NotImplementedError("only in compiled code")


@overload(_quantise_inputs)
def _quantise_inputs_of_dtype(weights, x):
    if weights.dtype == types.float32:
        return lambda weights, x: (x, np.ones(len(x), np.float32))
    return lambda weights, x: _round_to_int16(x)


@njit
def _round_to_int16(x):
    """Quantise rows to int16 and return the scale of each; NaN if a row has NaN."""
    quantised, units = np.empty(x.shape, np.int16), np.empty(len(x), np.float32)
    for row in range(len(x)):
        bits, largest = x[row].view(np.int32), np.int32(0)
        for i in range(len(bits)):  # absolute floats compare as their bits; NaN is largest
            largest = max(largest, bits[i] & _SIGN_MASK)
        size = np.int32(largest).view(np.float32)
        units[row], inverse = size / _INT16_MAX, _INT16_MAX / size if largest else np.float32(0.0)
        for i in range(len(bits)):
            quantised[row, i] = np.int16(np.rint(x[row, i] * inverse))
    return quantised, units


@njit
def _accumulate_tiles(weights, x, inputs, sums):
    """Add the dot products over the first `inputs` inputs, with outputs outermost: weights are read nearly in order."""
    outputs, in_tiles = len(weights) // _OUTPUTS_PER_ROW * _OUTPUTS_PER_ROW, len(x) // TILE_ROWS * TILE_ROWS
    in_order = _READS_IN_ORDER and x.itemsize == 2
    for block in range(0, outputs, _OUTPUTS_PER_ROW):
        for first in range(0, inputs, MAX_TILE_INPUTS):
            n_blocks = min(MAX_TILE_INPUTS, inputs - first) // INPUT_BLOCK
            for row in range(0, in_tiles, TILE_ROWS):
                for output in range(block, block + _OUTPUTS_PER_ROW, TILE_OUTPUTS):
                    _tile(weights, x, sums, output, row, first, n_blocks)
            if not in_order:
                for row in range(in_tiles, len(x)):
                    _row_tile(weights, x, sums, block, row, first, n_blocks)
        if in_order:
            _accumulate_in_order(weights, x, inputs, sums, block, block + _OUTPUTS_PER_ROW, in_tiles)
    _accumulate_in_order(weights, x, inputs, sums, outputs, len(weights), 0)


@njit
def _accumulate_in_order(weights, x, inputs, sums, begin, end, first_row):
    """The same for some outputs, one at a time, of the rows from `first_row` on."""
    for output in range(begin, end):
        for row in range(first_row, len(x)):
            for first in range(0, inputs, MAX_TILE_INPUTS):
                n_blocks = min(MAX_TILE_INPUTS, inputs - first) // INPUT_BLOCK
                _single_output(weights, x, sums, output, row, first, n_blocks)


@njit(fastmath={"contract"})
def _accumulate_remainder(weights, x, first, sums):
    """Add the dot products over the inputs from `first` on, too few for a tile."""
    for row in range(len(x)):
        for i in range(first, x.shape[1]):
            for output in range(len(weights)):
                sums[row, output] += np.float32(weights[output, i]) * np.float32(x[row, i])


@njit
def _compute_outputs(weights, scales, bias, x, units, out, begin, end, add):
    packed, is_float, inputs = 0, x.itemsize == 4, x.shape[1]
    # panels of more floats exceed the cache
    many, most = (MIN_PACKED_FLOAT_ROWS, MAX_TILE_INPUTS) if is_float else (_MIN_PACKED_ROWS, inputs)
    if len(x) >= many and inputs <= most and inputs % INPUT_BLOCK == 0:
        packed, middle = len(x) // PANEL_ROWS * PANEL_ROWS, end - (end - begin) % PANEL_OUTPUTS
        _compute_by_panels(weights, scales, bias, x[:packed], units, out, begin, middle, add)
        _compute_by_tiles(weights, scales, bias, x[:packed], units, out, middle, end, add)
    _compute_by_tiles(weights, scales, bias, x[packed:], units[packed:], out[packed:], begin, end, add)


@njit
def _rows_per_block(x):
    """Rows for which all outputs are computed before the next rows: a multiple of a panel's."""
    return max(_MIN_PACKED_ROWS, _BLOCK_BYTES // (x.shape[1] * x.itemsize) // PANEL_ROWS * PANEL_ROWS)


@njit
def _compute_by_panels(weights, scales, bias, x, units, out, begin, end, add):
    """The same for multiples of panels and of their rows."""
    n_blocks, in_32_bits = x.shape[1] // INPUT_BLOCK, 4 // x.itemsize
    panel = np.empty((x.shape[1] // in_32_bits, in_32_bits * PANEL_OUTPUTS), x.dtype)
    rows_per_block = _rows_per_block(x)
    shifts = bias if len(bias) else np.zeros(len(weights), np.float32)
    for first_row in range(0, len(x), rows_per_block):
        for output in range(begin, end, PANEL_OUTPUTS):
            pack_panel(weights, output, n_blocks, panel)
            for row in range(first_row, min(first_row + rows_per_block, len(x)), PANEL_ROWS):
                multiply_panel(panel, x, units, scales, shifts, out, output, row, n_blocks, add)


@njit
def _compute_by_tiles(weights, scales, bias, x, units, out, begin, end, add):
    """The same for any number."""
    if len(x) == 0:
        return
    inputs, rows = x.shape[1] // INPUT_BLOCK * INPUT_BLOCK, min(_rows_per_block(x), len(x))
    outputs = min(max(_SUMS_PER_BLOCK // rows // PANEL_OUTPUTS, 1) * PANEL_OUTPUTS, end - begin)
    buffer = np.empty((rows, outputs), np.float32)
    for first_row in range(0, len(x), rows):
        of_rows = x[first_row : first_row + rows]
        for first in range(begin, end, max(outputs, 1)):
            of_outputs = weights[first : min(first + outputs, end)]
            sums = buffer[: len(of_rows), : len(of_outputs)]
            for row in range(len(sums)):
                for i in range(sums.shape[1]):
                    sums[row, i] = np.float32(0.0)
            _accumulate_tiles(of_outputs, of_rows, inputs, sums)
            if inputs < x.shape[1]:
                _accumulate_remainder(of_outputs, of_rows, inputs, sums)
            for row in range(len(sums)):
                unit, of_row = units[first_row + row], out[first_row + row, first : first + len(of_outputs)]
                _write_outputs(
                    sums[row], scales[first : first + outputs], bias[first : first + outputs], unit, of_row, add
                )


@njit
def _write_outputs(sums, scales, bias, unit, out, add):
    """Scale the sums of a row, add the bias, and write them to `out` or add them."""
    for i in range(len(out)):
        value = sums[i]
        if len(scales):
            value = value * unit * scales[i]
        if len(bias):
            value += bias[i]
        out[i] = out[i] + value if add else value


@njit(is_entry=True, parallel=True)
def matmul(weights, scales, bias, x, out, add, threads):
    """Compute out = x weightsᵀ · scales + bias, or add it to `out`.

    Args:
        weights: (outputs, inputs) float32 or int8.
        scales: (outputs,) float32, or empty.
        bias: (outputs,) float32, or empty.
        x: (rows, inputs) float32.
        out: (rows, outputs) float32.
    """
    outputs = len(weights)
    quantised, units = _quantise_inputs(weights, x)
    if threads == 1:
        _compute_outputs(weights, scales, bias, quantised, units, out, as_variable(0), outputs, add)
    else:
        for part in prange(threads):
            begin, end = outputs * part // threads, outputs * (part + 1) // threads
            _compute_outputs(weights, scales, bias, quantised, units, out, begin, end, add)
