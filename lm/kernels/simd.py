"""Building blocks of LLVM IR: vectors of numbers, in memory and in SIMD registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

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
