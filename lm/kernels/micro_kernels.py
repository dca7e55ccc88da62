"""Micro-kernels of the matmul, in explicit SIMD instructions, and the LLVM IR they are built from.

For few rows, tiles of some rows by some outputs: their sums stay in registers; each loaded weight serves all rows, and
each input all outputs. The order of summation is the same in every tile: the results of a row don't depend on others.

For many rows, weights are packed into panels, with the outputs of one input contiguous. Lanes are outputs then, so no
horizontal sums are needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lm.kernels.code_cache import target_cpu

LANES = 16 if "+avx512bw" in target_cpu() else 8
"""32-bit numbers per register."""
INPUT_BLOCK = 2 * LANES
"""Inputs of a matmul that are loaded at a time."""
INDEX, BITS_32, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()

_NUMBERS = {types.float32: FLOAT, types.int16: ir.IntType(16), types.int8: ir.IntType(8)}


class Matrix:
    """A matrix in memory with contiguous rows; a vector is one row.

    Attributes:
        element_type: of the elements.
        elements_per_word: elements per 32 bits.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder, kind: types.Array, value: ir.Value) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._begin = builder, builder.ptrtoint(array.data, INDEX)
        self._stride = cgutils.unpack_tuple(builder, array.strides)[0] if kind.ndim > 1 else INDEX(0)
        self.element_type, self._bytes = _NUMBERS[kind.dtype], kind.dtype.bitwidth // 8
        self.elements_per_word = 4 // self._bytes
        self.is_integer = kind.dtype != types.float32

    def offset(self, row: ir.Value, first: ir.Value) -> Matrix:
        """The matrix from a row and column on."""
        other = copy(self)
        other._begin = self._address(row, first)
        return other

    def load(self, row: int | ir.Value, first: ir.Value, count: int = INPUT_BLOCK) -> ir.Value:
        return self._builder.load(self._place(row, first, count), align=self._bytes)

    def load_broadcast(self, row: int, index: ir.Value) -> ir.Value:
        """Load 32 bits of a row, the index counted in 32 bits, into all lanes: a float, or two 16-bit integers."""
        first = self._builder.mul(index, INDEX(self.elements_per_word))
        word = self._builder.load(self._place(row, first, self.elements_per_word), align=1)
        lanes = broadcast(self._builder, self._builder.bitcast(word, BITS_32))
        return self._builder.bitcast(lanes, ir.VectorType(self.element_type, LANES * self.elements_per_word))

    def prefetch(self, row: int, first: ir.Value) -> None:
        """Prefetch the elements that `load` will load.

        Without it a row of large models takes 1.6 times as long, as rows of several outputs are not contiguous.
        """
        for_reading, to_all_caches, of_data = BITS_32(0), BITS_32(3), BITS_32(1)
        place = self._place(row, first, INPUT_BLOCK)
        call(self._builder, "prefetch.p0", ir.VoidType(), [place, for_reading, to_all_caches, of_data])

    def store(self, numbers: ir.Value, row: int | ir.Value, first: ir.Value) -> None:
        self._builder.store(numbers, self._place(row, first, numbers.type.count), align=self._bytes)

    def _place(self, row: int | ir.Value, first: ir.Value, count: int) -> ir.Value:
        index = INDEX(row) if isinstance(row, int) else row
        return self._builder.inttoptr(self._address(index, first), ir.VectorType(self.element_type, count).as_pointer())

    def _address(self, row: ir.Value, first: ir.Value) -> ir.Value:
        of_row = self._builder.add(self._begin, self._builder.mul(self._stride, row))
        return self._builder.add(of_row, self._builder.mul(first, INDEX(self._bytes)))


def call(builder: ir.IRBuilder, name: str, kind: ir.Type, arguments: Sequence[ir.Value], **options: Any) -> ir.Value:
    """Call an intrinsic of LLVM that returns a type."""
    function = ir.FunctionType(kind, [argument.type for argument in arguments])
    called = cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}")
    return builder.call(called, arguments, **options)


def zeros(number: ir.Type) -> ir.Value:
    return ir.Constant(ir.VectorType(number, LANES), [0] * LANES)


def broadcast(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    empty = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    return shuffle(builder, builder.insert_element(empty, number, BITS_32(0)), empty, [0] * LANES)


def multiply_add_floats(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    return builder.fadd(total, builder.fmul(weights, x, flags=("contract",)), flags=("contract",))


def multiply_add_integers(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """Multiply twice as many integers and add adjacent products first, for which processors have an instruction."""
    wide = ir.VectorType(BITS_32, INPUT_BLOCK)
    wide_products = builder.mul(builder.sext(weights, wide), builder.sext(x, wide), flags=("nsw",))
    even, odd = (shuffle(builder, wide_products, wide_products, range(first, INPUT_BLOCK, 2)) for first in (0, 1))
    return builder.add(total, builder.add(even, odd))


def shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: Iterable[int]) -> ir.Value:
    chosen = [*places]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(BITS_32, len(chosen)), chosen))


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
    return as_floats(builder, vectors[0])


def as_floats(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Convert a vector of integers."""
    return vector if vector.type.element == FLOAT else builder.sitofp(vector, ir.VectorType(FLOAT, LANES))


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
