"""Tiles of products: some rows with some outputs at once, in vector instructions that are written down one by one.

The sums of a tile stay in registers; each weight that is read serves all of its rows, and each input all of its
outputs. A sum is made in one order, whatever tile it is in: a row's numbers depend on nothing but that row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lm.kernels.compiled import processor

LANES = 16 if "+avx512bw" in processor() else 8
"""Numbers of 32 bits in a register."""
ROWS, OUTPUTS = 4, LANES // 4
"""Of the largest tile that stays in the registers that there are."""
INPUTS = 2 * LANES
"""Inputs that a tile takes at a time."""

_INDEX, _BITS_32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_NUMBERS = {types.float32: _FLOAT, types.int16: ir.IntType(16), types.int8: ir.IntType(8)}


def tile_of(rows: int, outputs: int) -> Any:
    """A function of compiled code that makes a tile.

    It takes (outputs, inputs) weights in float32 or int8; (rows, inputs) inputs in float32 or int16; how many times
    `INPUTS` of them count; and (rows, outputs) float32 to be filled. Of whole numbers the inputs must not be beyond
    `most_of` them.
    """

    @intrinsic
    def tile(_context, weights, x, times, out):  # noqa: ARG001 (its type is always the same)
        def generate(context, builder, signature, arguments):
            of_weights, of_x, of_out = (
                _Matrix(context, builder, signature.args[place], arguments[place]) for place in (0, 1, 3)
            )
            totals = _totals(builder, _sums(builder, of_weights, of_x, arguments[2], rows, outputs))
            for row in range(rows):
                of_row = range(row * outputs, (row + 1) * outputs)
                of_out.store(_picked(builder, totals, totals, of_row), row)
            return context.get_dummy_value()

        assert (weights.dtype, x.dtype) in {(types.float32, types.float32), (types.int8, types.int16)}
        return types.void(weights, x, types.intp, out), generate

    return tile


def most_of(inputs: int) -> int:
    """The largest that one of so many whole inputs may be: sums of their products with 8 bits stay within 32 bits."""
    products = 2 * -(-inputs // INPUTS)
    return min(2**15 - 1, (2**31 - 1) // (127 * products))


class _Matrix:
    """Numbers in memory, those of a row beside each other.

    Attributes:
        is_whole: whether they are no floats.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder, kind: types.Array, value: ir.Value) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._begin = builder, builder.ptrtoint(array.data, _INDEX)
        self._stride = cgutils.unpack_tuple(builder, array.strides)[0]
        self._number, self._bytes = _NUMBERS[kind.dtype], kind.dtype.bitwidth // 8
        self.is_whole = kind.dtype != types.float32

    def vector(self, row: int, first: ir.Value) -> ir.Value:
        """`INPUTS` numbers of a row from the first on."""
        return self._builder.load(self._place(row, first, INPUTS), align=self._bytes)

    def fetch(self, row: int, first: ir.Value) -> None:
        """Have the numbers brought near that `vector` will load, if there are any.

        Without it a row of large models takes 1.6 times as long, for those of several outputs are not in a line.
        """
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), _BITS_32, _BITS_32, _BITS_32])
        prefetch = cgutils.get_or_insert_function(self._builder.module, kind, "llvm.prefetch.p0")
        for_reading, to_all_caches, of_data = _BITS_32(0), _BITS_32(3), _BITS_32(1)
        self._builder.call(prefetch, [self._place(row, first, INPUTS), for_reading, to_all_caches, of_data])

    def store(self, numbers: ir.Value, row: int) -> None:
        """Write the first numbers of a row."""
        self._builder.store(numbers, self._place(row, _INDEX(0), numbers.type.count), align=self._bytes)

    def _place(self, row: int, first: ir.Value, count: int) -> ir.Value:
        of_row = self._builder.add(self._begin, self._builder.mul(self._stride, _INDEX(row)))
        address = self._builder.add(of_row, self._builder.mul(first, _INDEX(self._bytes)))
        return self._builder.inttoptr(address, ir.VectorType(self._number, count).as_pointer())


def _sums(
    builder: ir.IRBuilder, weights: _Matrix, x: _Matrix, times: ir.Value, rows: int, outputs: int
) -> list[ir.Value]:
    """A vector of float32, whose sum is wanted, for each output of each row."""
    add, number = (_whole_added, _BITS_32) if weights.is_whole else (_floats_added, _FLOAT)
    nothing = ir.Constant(ir.VectorType(number, LANES), [0] * LANES)
    places = [cgutils.alloca_once_value(builder, nothing) for _ in range(rows * outputs)]
    with cgutils.for_range(builder, times) as loop:
        first = builder.mul(loop.index, _INDEX(INPUTS))
        of_rows = [x.vector(row, first) for row in range(rows)]
        for output in range(outputs):
            of_output = weights.vector(output, first)
            weights.fetch(output + outputs, first)
            for row, of_row in enumerate(of_rows):
                place = places[row * outputs + output]
                builder.store(add(builder, builder.load(place), of_output, of_row), place)
    sums = [builder.load(place) for place in places]
    return [builder.sitofp(one, ir.VectorType(_FLOAT, LANES)) for one in sums] if weights.is_whole else sums


def _floats_added(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """Sums, and the products of `INPUTS` weights with as many inputs."""
    for half in (range(LANES), range(LANES, INPUTS)):
        a, b = (_picked(builder, vector, vector, half) for vector in (weights, x))
        total = builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))
    return total


def _whole_added(builder: ir.IRBuilder, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """The same of whole numbers: neighbours are added first, for which processors have an instruction."""
    wide = ir.VectorType(_BITS_32, INPUTS)
    products = builder.mul(builder.sext(weights, wide), builder.sext(x, wide), flags=("nsw",))
    even, odd = (_picked(builder, products, products, range(first, INPUTS, 2)) for first in (0, 1))
    return builder.add(total, builder.add(even, odd))


def _totals(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """A vector that begins with the sum of each: always of neighbours, then of neighbours of those."""
    for _ in range(LANES.bit_length() - 1):
        vectors = [
            _neighbours_added(builder, *pair) for pair in zip(vectors[::2], vectors[1::2] or vectors, strict=True)
        ]
    return vectors[0]


def _neighbours_added(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """A vector as long: the sums of the neighbours in one, and then of those in the other."""
    even, odd = (_picked(builder, a, b, range(first, 2 * a.type.count, 2)) for first in (0, 1))
    return builder.fadd(even, odd)


def _picked(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: Iterable[int]) -> ir.Value:
    """Some of the numbers of two vectors, one behind the other."""
    chosen = [*places]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_BITS_32, len(chosen)), chosen))
