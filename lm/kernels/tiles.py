"""Matmul micro-kernel for few rows: tiles of some rows by some outputs, in explicit SIMD instructions.

The sums of a tile stay in registers; each loaded weight serves all rows, and each input all outputs. The order of
summation is the same in every tile: the results of a row don't depend on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    multiply_add_floats,
    multiply_add_integers,
    shuffle,
    zeros,
)

TILE_ROWS, TILE_OUTPUTS = 4, LANES // 4
"""Rows and outputs of the largest tile whose sums fit into the registers."""
MAX_TILE_INPUTS = 512
"""Inputs per call: the sum of this many products of int16 and int8 fits into 32 bits."""

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
            weights, x, out = (
                Matrix(context, builder, kind, value)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            )
            output, row, first, n_blocks = arguments[3:]
            of_weights, of_x = weights.offset(output, first), x.offset(row, first)
            of_out = out.offset(row, output)
            totals = horizontal_sums(builder, _accumulate(builder, of_weights, of_x, n_blocks, rows, outputs))
            for index in range(rows):
                of_row = range(index * outputs, (index + 1) * outputs)
                of_out.accumulate(shuffle(builder, totals, totals, of_row), index)
            return context.get_dummy_value()

        assert (weights.dtype, x.dtype) in {(types.float32, types.float32), (types.int8, types.int16)}
        return types.void(weights, x, out, *[types.intp] * 4), generate

    return tile


def _accumulate(
    builder: ir.IRBuilder, weights: Matrix, x: Matrix, n_blocks: ir.Value, rows: int, outputs: int
) -> list[ir.Value]:
    """For each output of each row, a vector whose sum is the dot product."""
    add, number = (multiply_add_integers, BITS_32) if weights.is_integer else (_multiply_add_halves, FLOAT)
    places = [cgutils.alloca_once_value(builder, zeros(number)) for _ in range(rows * outputs)]
    with cgutils.for_range(builder, n_blocks) as loop:
        first = builder.mul(loop.index, INDEX(INPUT_BLOCK))
        of_rows = [x.load(row, first) for row in range(rows)]
        for output in range(outputs):
            of_output = weights.load(output, first)
            if outputs == 1:
                weights.prefetch(output, builder.add(first, INDEX(_PREFETCH_DISTANCE)))
            else:
                weights.prefetch(output + outputs, first)
            for row, of_row in enumerate(of_rows):
                place = places[row * outputs + output]
                builder.store(add(builder, builder.load(place), of_output, of_row), place)
    return [builder.load(place) for place in places]


def _multiply_add_halves(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    for half in (range(LANES), range(LANES, INPUT_BLOCK)):
        total = multiply_add_floats(
            builder, total, *(shuffle(builder, vector, vector, half) for vector in (weights, x))
        )
    return total


def horizontal_sums(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """A float32 vector that starts with the sum of each vector; the order of additions is fixed."""
    is_whole = vectors[0].type.element != FLOAT
    add = builder.add if is_whole else builder.fadd
    group = LANES  # adjacent lanes of one sum
    while group > 1:
        group //= 2
        left, right = ([place for place in range(2 * LANES) if place // group % 2 == side] for side in (0, 1))
        vectors = [
            add(shuffle(builder, a, b, left), shuffle(builder, a, b, right))
            for a, b in zip(vectors[::2], vectors[1::2] or vectors, strict=True)
        ]
    return builder.sitofp(vectors[0], ir.VectorType(FLOAT, LANES)) if is_whole else vectors[0]
