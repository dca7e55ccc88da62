"""Micro-kernels of the matmul, in explicit SIMD instructions.

For few rows, tiles of some rows by some outputs: their sums stay in registers; each loaded weight serves all rows, and
each input all outputs. The order of summation is the same in every tile: the results of a row don't depend on others.

For many rows, weights are packed into panels, with the outputs of one input contiguous. Lanes are outputs then, so no
horizontal sums are needed.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lm.kernels.simd import (
    BITS_32,
    FLOAT,
    INDEX,
    INPUT_BLOCK,
    LANES,
    Matrix,
    as_floats,
    horizontal_sums,
    multiply_add_floats,
    multiply_add_integers,
    shuffle,
    zeros,
)

TILE_ROWS, TILE_OUTPUTS = 4, LANES // 4
"""Rows and outputs of the largest tile whose sums fit into the registers."""
MAX_TILE_INPUTS = 512
"""Inputs per call: the sum of this many products of int16 and int8 fits into 32 bits."""
PANEL_OUTPUTS = 2 * LANES
"""Outputs per panel."""
PANEL_ROWS = 12 if LANES == 16 else 6
"""Rows multiplied by a panel at once, whose sums stay in registers."""

_PREFETCH_DISTANCE = 1024
"""Inputs that a single output prefetches ahead: they may be those of the next outputs, which follow in memory."""


def build_tile_kernel(rows: int, outputs: int) -> Any:
    """Build the compiled function that computes a tile.

    It takes (outputs, inputs) weights in float32 or int8; (rows, inputs) inputs in float32 or int16; (rows, outputs)
    float32, to which it adds; the first output, row and input of the tile; and the number of `INPUT_BLOCK` blocks,
    `MAX_TILE_INPUTS` inputs at most. It takes indices because array views take as long as a fifth of a tile.
    """

    @intrinsic
    def tile(_context, weights, x, out, output, row, first, n_blocks):
        def generate(context, builder, signature, arguments):
            pairs = zip(signature.args[:3], arguments[:3], strict=True)
            weights, x, out = (Matrix(context, builder, *pair) for pair in pairs)
            output, row, first, n_blocks = arguments[3:]
            weights, x, out = weights.offset(output, first), x.offset(row, first), out.offset(row, output)
            add, number = (multiply_add_integers, BITS_32) if weights.is_integer else (_multiply_add_halves, FLOAT)
            # for each output of each row, a vector whose sum is the dot product
            places = [cgutils.alloca_once_value(builder, zeros(number)) for _ in range(rows * outputs)]
            with cgutils.for_range(builder, n_blocks) as loop:
                begin = builder.mul(loop.index, INDEX(INPUT_BLOCK))
                of_rows = [x.load(index, begin) for index in range(rows)]
                for column in range(outputs):
                    of_output = weights.load(column, begin)
                    if outputs == 1:
                        weights.prefetch(0, builder.add(begin, INDEX(_PREFETCH_DISTANCE)))
                    else:
                        weights.prefetch(column + outputs, begin)
                    for of_row, place in zip(of_rows, places[column::outputs], strict=True):
                        builder.store(add(builder, builder.load(place), of_output, of_row), place)
            totals = horizontal_sums(builder, [builder.load(place) for place in places])
            for index in range(rows):
                of_row = shuffle(builder, totals, totals, range(index * outputs, (index + 1) * outputs))
                out.store(builder.fadd(out.load(index, INDEX(0), outputs), of_row), index, INDEX(0))
            return context.get_dummy_value()

        return types.void(weights, x, out, *[types.intp] * 4), generate

    return tile


def _multiply_add_halves(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    for half in (range(LANES), range(LANES, INPUT_BLOCK)):
        parts = (shuffle(builder, vector, vector, half) for vector in (weights, x))
        total = multiply_add_floats(builder, total, *parts)
    return total


@intrinsic
def pack_panel(_context, weights, output, n_blocks, panel):
    """Pack weights into a panel; integers are widened to 16 bits.

    Args:
        weights: (outputs, inputs) float32 or int8.
        panel: (inputs, `PANEL_OUTPUTS`) float32, or (pairs of inputs, 2 × `PANEL_OUTPUTS`) int16.
    """

    def generate(context, builder, signature, arguments):
        weights, panel = (Matrix(context, builder, signature.args[index], arguments[index]) for index in (0, 3))
        rows = weights.offset(arguments[1], INDEX(0))
        at_once = LANES * panel.elements_per_word
        kind = ir.VectorType(panel.element_type, at_once)
        with cgutils.for_range(builder, builder.mul(arguments[2], INDEX(INPUT_BLOCK // at_once))) as loop:
            first, row = (builder.mul(loop.index, INDEX(size)) for size in (at_once, LANES))
            for begin in (0, LANES):
                read = [rows.load(output, first, at_once) for output in range(begin, begin + LANES)]
                wide = [builder.sext(vector, kind) for vector in read] if rows.is_integer else read
                in_32_bits = [builder.bitcast(vector, ir.VectorType(BITS_32, LANES)) for vector in wide]
                for index, vector in enumerate(_transpose(builder, in_32_bits)):
                    row_index = builder.add(row, INDEX(index))
                    panel.store(builder.bitcast(vector, kind), row_index, INDEX(begin * panel.elements_per_word))
        return context.get_dummy_value()

    return types.void(weights, types.intp, types.intp, panel), generate


def _transpose(builder: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    size = len(vectors)
    places = [place for index in range(size) for place in (index, index + size)]
    for _ in range((size // 2).bit_length()):
        pairs = zip(vectors[: size // 2], vectors[size // 2 :], strict=True)
        vectors = [shuffle(builder, *pair, part) for pair in pairs for part in (places[:size], places[size:])]
    return vectors


@intrinsic
def multiply_panel(_context, panel, x, units, scales, bias, out, output, row, n_blocks, add):
    """Compute the outputs of a panel for `PANEL_ROWS` rows, summed over chunks of `MAX_TILE_INPUTS`.

    Args:
        panel: from `pack_panel`.
        x: (rows, inputs) float32 or int16.
        units: (rows,) float32, scale of each row, for integers.
        scales: (outputs,) float32, of the weights, if these are integers.
        bias: (outputs,) float32.
        out: (rows, outputs) float32.
        output: the first output.
        row: the first row.
    """

    def generate(context, builder, signature, arguments):
        pairs = zip(signature.args[:6], arguments[:6], strict=True)
        panel, x, units, scales, bias, out = (Matrix(context, builder, *pair) for pair in pairs)
        output, row, n_blocks, add = arguments[6:]
        x, units, out = x.offset(row, INDEX(0)), units.offset(INDEX(0), row), out.offset(row, output)
        scales, bias = scales.offset(INDEX(0), output), bias.offset(INDEX(0), output)
        multiply_add, number = (multiply_add_integers, BITS_32) if panel.is_integer else (multiply_add_floats, FLOAT)
        totals, sums = (
            [[cgutils.alloca_once_value(builder, zeros(of)) for _ in range(2)] for _ in range(PANEL_ROWS)]
            for of in (FLOAT, number)
        )
        half = LANES * panel.elements_per_word
        inputs = builder.mul(n_blocks, INDEX(INPUT_BLOCK // panel.elements_per_word))
        chunk = INDEX(MAX_TILE_INPUTS // panel.elements_per_word)
        with cgutils.for_range_slice(builder, INDEX(0), inputs, chunk, INDEX) as (begin, _):
            end = builder.add(begin, chunk)
            end = builder.select(builder.icmp_signed("<", end, inputs), end, inputs)
            for place in itertools.chain(*sums):
                builder.store(zeros(number), place)
            with cgutils.for_range_slice(builder, begin, end, INDEX(1), INDEX) as (index, _):
                weights = [panel.load(index, INDEX(first), half) for first in (0, half)]
                for row_index, of_row in enumerate(sums):
                    read = x.load_broadcast(row_index, index)
                    for of_half, place in zip(weights, of_row, strict=True):
                        builder.store(multiply_add(builder, builder.load(place), of_half, read), place)
            for total, place in zip(itertools.chain(*totals), itertools.chain(*sums), strict=True):
                loaded = as_floats(builder, builder.load(place))
                builder.store(builder.fadd(builder.load(total), loaded), total)
        columns = [INDEX(0), INDEX(LANES)]
        scaled, shifts = ([vector.load(0, first, LANES) for first in columns] for vector in (scales, bias))
        for index, of_row in enumerate(totals):
            unit = units.load_broadcast(0, INDEX(index))
            for first, total, scale, shift in zip(columns, of_row, scaled, shifts, strict=True):
                value = builder.load(total)
                value = builder.fmul(builder.fmul(value, unit), scale) if x.is_integer else value
                there = builder.select(add, out.load(index, first, LANES), zeros(FLOAT))
                out.store(builder.fadd(there, builder.fadd(value, shift)), index, first)
        return context.get_dummy_value()

    return types.void(panel, x, units, scales, bias, out, *[types.intp] * 3, types.boolean), generate
