"""Products of many rows: weights are laid out anew, the outputs of an input side by side, in panels.

Then lanes are outputs, and none of a row's are left to be added up. Laying out is paid for by many rows.
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
    INPUTS,
    LANES,
    Matrix,
    multiply_add_floats,
    multiply_add_integers,
    shuffle,
    zeros,
)
from lm.kernels.tiles import MOST_INPUTS

OUTPUTS = 2 * LANES
"""Of a panel."""
ROWS = 12 if LANES == 16 else 6
"""That are multiplied by a panel at once: their sums stay in registers."""


@intrinsic
def pack_panel(_context, weights, output, times, panel):
    """Fill a panel with some weights; whole numbers are widened to 16 bits.

    Args:
        weights: (outputs, inputs) float32 or int8.
        output: the first one of the panel.
        times: how many times `INPUTS` of them count.
        panel: (inputs, `OUTPUTS`) float32, or (pairs of inputs, 2 × `OUTPUTS`) int16.
    """

    def generate(context, builder, signature, arguments):
        weights, of_panel = (Matrix(context, builder, signature.args[place], arguments[place]) for place in (0, 3))
        of_weights = weights.seen_from(arguments[1], INDEX(0))
        at_once = LANES * of_panel.in_32_bits
        kind = ir.VectorType(of_panel.number, at_once)
        with cgutils.for_range(builder, builder.mul(arguments[2], INDEX(INPUTS // at_once))) as loop:
            first, row = (builder.mul(loop.index, INDEX(size)) for size in (at_once, LANES))
            for begin in (0, LANES):
                read = [of_weights.vector(output, first, at_once) for output in range(begin, begin + LANES)]
                wide = [builder.sext(vector, kind) for vector in read] if of_weights.is_whole else read
                in_32_bits = [builder.bitcast(vector, ir.VectorType(BITS_32, LANES)) for vector in wide]
                for index, vector in enumerate(_transpose(builder, in_32_bits)):
                    place = builder.add(row, INDEX(index))
                    of_panel.store(builder.bitcast(vector, kind), place, INDEX(begin * of_panel.in_32_bits))
        return context.get_dummy_value()

    return types.void(weights, types.intp, types.intp, panel), generate


@intrinsic
def multiply_panel(_context, panel, x, units, scales, bias, out, output, row, times, add):
    """Make the outputs of a panel for `ROWS` rows.

    Args:
        panel: as `pack_panel` fills it.
        x: (rows, inputs) float32 or int16.
        units: (rows,) float32, what a one of each row counts for, of whole numbers.
        scales: (outputs,) float32, of the weights, if these are whole numbers.
        bias: (outputs,) float32.
        out: (rows, outputs) float32.
        output: the first one of the panel.
        row: the first one.
        times: how many times `INPUTS` of the inputs count.
        add: whether to add to what is there.
    """

    def generate(context, builder, signature, arguments):
        panel, x, units, scales, bias, out = (
            Matrix(context, builder, kind, value) for kind, value in zip(signature.args[:6], arguments[:6], strict=True)
        )
        output, row, times, add = arguments[6:]
        of_x, of_units, of_out = x.seen_from(row, INDEX(0)), units.seen_from(INDEX(0), row), out.seen_from(row, output)
        columns = [INDEX(0), INDEX(LANES)]
        scaled, shifts = (
            [one.seen_from(INDEX(0), output).vector(0, first, LANES) for first in columns] for one in (scales, bias)
        )
        for index, totals in enumerate(_accumulate(builder, panel, of_x, times)):
            unit = of_units.spread(0, INDEX(index))
            for first, total, scale, shift in zip(columns, totals, scaled, shifts, strict=True):
                value = builder.fmul(builder.fmul(total, unit), scale) if x.is_whole else total
                there = builder.select(add, of_out.vector(index, first, LANES), zeros(FLOAT))
                of_out.store(builder.fadd(there, builder.fadd(value, shift)), index, first)
        return context.get_dummy_value()

    return types.void(panel, x, units, scales, bias, out, *[types.intp] * 3, types.boolean), generate


def _accumulate(builder: ir.IRBuilder, panel: Matrix, x: Matrix, times: ir.Value) -> list[list[ir.Value]]:
    """The sums of products of each row in float32: those of `MOST_INPUTS`, and then of these."""
    add, number = (multiply_add_integers, BITS_32) if panel.is_whole else (multiply_add_floats, FLOAT)
    totals, sums = (
        [[cgutils.alloca_once_value(builder, zeros(of)) for _ in range(2)] for _ in range(ROWS)]
        for of in (FLOAT, number)
    )
    half = LANES * panel.in_32_bits
    inputs, of_part = builder.mul(times, INDEX(INPUTS // panel.in_32_bits)), INDEX(MOST_INPUTS // panel.in_32_bits)
    with cgutils.for_range_slice(builder, INDEX(0), inputs, of_part, INDEX) as (begin, _):
        end = builder.add(begin, of_part)
        end = builder.select(builder.icmp_signed("<", end, inputs), end, inputs)
        for place in itertools.chain(*sums):
            builder.store(zeros(number), place)
        with cgutils.for_range_slice(builder, begin, end, INDEX(1), INDEX) as (index, _):
            weights = [panel.vector(index, INDEX(first), half) for first in (0, half)]
            for row, of_row in enumerate(sums):
                read = x.spread(row, index)
                for of_half, place in zip(weights, of_row, strict=True):
                    builder.store(add(builder, builder.load(place), of_half, read), place)
        for total, place in zip(itertools.chain(*totals), itertools.chain(*sums), strict=True):
            found = builder.load(place)
            found = builder.sitofp(found, ir.VectorType(FLOAT, LANES)) if panel.is_whole else found
            builder.store(builder.fadd(builder.load(total), found), total)
    return [[builder.load(total) for total in of_row] for of_row in totals]


def _transpose(builder: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """As many vectors as each has numbers: the first number of each, the second of each, and so on."""
    half = len(vectors) // 2
    places = [place for index in range(len(vectors)) for place in (index, index + len(vectors))]
    for _ in range(half.bit_length()):
        vectors = [
            shuffle(builder, a, b, part)
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
            for part in (places[: len(vectors)], places[len(vectors) :])
        ]
    return vectors
