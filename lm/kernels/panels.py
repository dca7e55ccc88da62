"""Matmul micro-kernel for many rows: weights are packed into panels, with the outputs of one input contiguous.

Lanes are outputs then, so no horizontal sums are needed. Packing pays off for many rows.
"""

from __future__ import annotations

import itertools

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
    multiply_add_floats,
    multiply_add_integers,
    shuffle,
    zeros,
)
from lm.kernels.tiles import MAX_TILE_INPUTS

PANEL_OUTPUTS = 2 * LANES
"""Outputs per panel."""
PANEL_ROWS = 12 if LANES == 16 else 6
"""Rows multiplied by a panel at once, whose sums stay in registers."""


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


@intrinsic
def multiply_panel(_context, panel, x, units, scales, bias, out, output, row, n_blocks, add):
    """Compute the outputs of a panel for `PANEL_ROWS` rows.

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
        panel, x, units, scales, bias, out = (
            Matrix(context, builder, kind, value) for kind, value in zip(signature.args[:6], arguments[:6], strict=True)
        )
        output, row, n_blocks, add = arguments[6:]
        of_x, of_units, of_out = x.offset(row, INDEX(0)), units.offset(INDEX(0), row), out.offset(row, output)
        columns = [INDEX(0), INDEX(LANES)]
        scaled, shifts = (
            [vector.offset(INDEX(0), output).load(0, first, LANES) for first in columns] for vector in (scales, bias)
        )
        for index, totals in enumerate(_accumulate(builder, panel, of_x, n_blocks)):
            unit = of_units.load_broadcast(0, INDEX(index))
            for first, total, scale, shift in zip(columns, totals, scaled, shifts, strict=True):
                value = builder.fmul(builder.fmul(total, unit), scale) if x.is_integer else total
                there = builder.select(add, of_out.load(index, first, LANES), zeros(FLOAT))
                of_out.store(builder.fadd(there, builder.fadd(value, shift)), index, first)
        return context.get_dummy_value()

    return types.void(panel, x, units, scales, bias, out, *[types.intp] * 3, types.boolean), generate


def _accumulate(builder: ir.IRBuilder, panel: Matrix, x: Matrix, n_blocks: ir.Value) -> list[list[ir.Value]]:
    """The dot products of each row in float32, summed over chunks of `MAX_TILE_INPUTS`."""
    add, number = (multiply_add_integers, BITS_32) if panel.is_integer else (multiply_add_floats, FLOAT)
    totals, sums = (
        [[cgutils.alloca_once_value(builder, zeros(of)) for _ in range(2)] for _ in range(PANEL_ROWS)]
        for of in (FLOAT, number)
    )
    half = LANES * panel.elements_per_word
    inputs, of_part = (
        builder.mul(n_blocks, INDEX(INPUT_BLOCK // panel.elements_per_word)),
        INDEX(MAX_TILE_INPUTS // panel.elements_per_word),
    )
    with cgutils.for_range_slice(builder, INDEX(0), inputs, of_part, INDEX) as (begin, _):
        end = builder.add(begin, of_part)
        end = builder.select(builder.icmp_signed("<", end, inputs), end, inputs)
        for place in itertools.chain(*sums):
            builder.store(zeros(number), place)
        with cgutils.for_range_slice(builder, begin, end, INDEX(1), INDEX) as (index, _):
            weights = [panel.load(index, INDEX(first), half) for first in (0, half)]
            for row, of_row in enumerate(sums):
                read = x.load_broadcast(row, index)
                for of_half, place in zip(weights, of_row, strict=True):
                    builder.store(add(builder, builder.load(place), of_half, read), place)
        for total, place in zip(itertools.chain(*totals), itertools.chain(*sums), strict=True):
            loaded = builder.load(place)
            loaded = builder.sitofp(loaded, ir.VectorType(FLOAT, LANES)) if panel.is_integer else loaded
            builder.store(builder.fadd(builder.load(total), loaded), total)
    return [[builder.load(total) for total in of_row] for of_row in totals]


def _transpose(builder: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    half = len(vectors) // 2
    places = [place for index in range(len(vectors)) for place in (index, index + len(vectors))]
    for _ in range(half.bit_length()):
        vectors = [
            shuffle(builder, a, b, part)
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
            for part in (places[: len(vectors)], places[len(vectors) :])
        ]
    return vectors
