"""Products of many rows: weights are laid out anew, the outputs of an input side by side, in panels.

Then lanes are outputs, and none of a row's are left to be added up. Laying out is paid for by many rows.
"""

from __future__ import annotations

import itertools

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lm.kernels.instructions import BITS_32, FLOAT, INDEX, INPUTS, LANES, Matrix, nothing, picked, whole_added
from lm.kernels.tiles import MOST_INPUTS

OUTPUTS = 2 * LANES
"""Of a panel."""
ROWS = 12 if LANES == 16 else 6
"""That are multiplied by a panel at once: their sums stay in registers."""


@intrinsic
def lay_out(_context, weights, times, panel):
    """Fill a panel with some weights, widened to 16 bits.

    Args:
        weights: (`OUTPUTS`, inputs) int8.
        times: how many times `INPUTS` of them count.
        panel: (pairs of inputs, 2 × `OUTPUTS`) int16.
    """

    def generate(context, builder, signature, arguments):
        of_weights, of_panel = (Matrix(context, builder, signature.args[place], arguments[place]) for place in (0, 2))
        wide = ir.VectorType(ir.IntType(16), INPUTS)
        with cgutils.for_range(builder, arguments[1]) as loop:
            first, pair = (builder.mul(loop.index, INDEX(size)) for size in (INPUTS, LANES))
            for begin in range(0, OUTPUTS, LANES):
                outputs = range(begin, begin + LANES)
                pairs = [builder.sext(of_weights.vector(output, first), wide) for output in outputs]
                as_one = [builder.bitcast(vector, ir.VectorType(BITS_32, LANES)) for vector in pairs]
                for index, vector in enumerate(_turned(builder, as_one)):
                    of_panel.store(builder.bitcast(vector, wide), builder.add(pair, INDEX(index)), INDEX(2 * begin))
        return context.get_dummy_value()

    return types.void(weights, types.intp, panel), generate


@intrinsic
def multiply(_context, panel, x, times, units, scales, bias, out, add):
    """Make the outputs of a panel for some rows.

    Args:
        panel: as `lay_out` fills it.
        x: (`ROWS`, inputs) int16.
        times: how many times `INPUTS` of them count.
        units: (`ROWS`,) float32, what a one of each row counts for.
        scales: (`OUTPUTS`,) float32, of the weights.
        bias: (`OUTPUTS`,) float32.
        out: (`ROWS`, `OUTPUTS`) float32.
        add: whether to add to what is there.
    """

    def generate(context, builder, signature, arguments):
        of_panel, of_x, _, of_units, of_scales, of_bias, of_out = (
            Matrix(context, builder, kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args[:-1], arguments[:-1], strict=True)
        )
        totals = _totals(builder, of_panel, of_x, arguments[2])
        columns = [INDEX(0), INDEX(LANES)]
        of_outputs = [[one.vector(0, first, LANES) for first in columns] for one in (of_scales, of_bias)]
        for row, sums in enumerate(totals):
            unit = of_units.spread(0, INDEX(row))
            for first, total, scale, shift in zip(columns, sums, *of_outputs, strict=True):
                value = builder.fadd(builder.fmul(builder.fmul(total, unit), scale), shift)
                there = builder.select(arguments[-1], of_out.vector(row, first, LANES), nothing(FLOAT))
                of_out.store(builder.fadd(there, value), row, first)
        return context.get_dummy_value()

    return types.void(panel, x, types.intp, units, scales, bias, out, types.boolean), generate


def _totals(builder: ir.IRBuilder, panel: Matrix, x: Matrix, times: ir.Value) -> list[list[ir.Value]]:
    """The sums of products of each row in float32, of which those of `MOST_INPUTS` are whole numbers."""
    totals, sums = (
        [[cgutils.alloca_once_value(builder, nothing(of)) for _ in range(2)] for _ in range(ROWS)]
        for of in (FLOAT, BITS_32)
    )
    units, of_part = builder.mul(times, INDEX(LANES)), INDEX(MOST_INPUTS // 2)
    with cgutils.for_range_slice(builder, INDEX(0), units, of_part, INDEX) as (begin, _):
        end = builder.add(begin, of_part)
        end = builder.select(builder.icmp_signed("<", end, units), end, units)
        for place in itertools.chain(*sums):
            builder.store(nothing(BITS_32), place)
        with cgutils.for_range_slice(builder, begin, end, INDEX(1), INDEX) as (pair, _):
            weights = [panel.vector(pair, INDEX(first)) for first in (0, INPUTS)]
            for row, of_row in enumerate(sums):
                inputs = x.spread(row, pair)
                for half, place in zip(weights, of_row, strict=True):
                    builder.store(whole_added(builder, builder.load(place), half, inputs), place)
        for total, place in zip(itertools.chain(*totals), itertools.chain(*sums), strict=True):
            found = builder.sitofp(builder.load(place), ir.VectorType(FLOAT, LANES))
            builder.store(builder.fadd(builder.load(total), found), total)
    return [[builder.load(total) for total in of_row] for of_row in totals]


def _turned(builder: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """As many vectors as each has numbers: the first number of each, the second of each, and so on."""
    half = len(vectors) // 2
    places = [place for index in range(len(vectors)) for place in (index, index + len(vectors))]
    for _ in range(half.bit_length()):
        vectors = [
            picked(builder, a, b, part)
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
            for part in (places[: len(vectors)], places[len(vectors) :])
        ]
    return vectors
