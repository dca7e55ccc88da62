"""Reductions over short vectors in explicit SIMD instructions: compilers vectorise loops for long ones.

The last elements, too few to fill a register, are loaded and stored with a mask.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lm.kernels.scalar_math import EXP_COEFFICIENTS, LN2_HIGH, LN2_LOW, LOG2E, MIN_EXPONENT
from lm.kernels.simd import BITS_32, FLOAT, INDEX, LANES, broadcast, zeros
from lm.kernels.tiles import horizontal_sums

_ACCUMULATORS = 4
"""Independent accumulators, as an addition must wait for the one before."""

_VECTOR, _MASK = ir.VectorType(FLOAT, LANES), ir.VectorType(ir.IntType(1), LANES)
_NOTHING = zeros(FLOAT)
_BYTES = 4
_MINIMUM = -1e30
"""Less than any other number."""


@intrinsic
def gather_dot_products(_context, vector, rows, places, count, width, out):
    """Write to `out` the dot product of a vector and row `places[i]`, for each i below `count`.

    All arguments except `count` and `width` are addresses: of `width` float32, of rows of as many, of int64 indices,
    and of the float32 output. A register of rows is processed at a time, at the end some repeatedly.
    """

    def generate(_, builder, __, arguments):
        vector, rows, places, count, width, out = arguments
        last = builder.sub(count, INDEX(1))

        def write(first: ir.Value, mask: ir.Value | None) -> None:
            totals = [_allocate_vector(builder, 0.0) for _ in range(LANES)]
            indices = (builder.add(first, INDEX(lane)) for lane in range(LANES))
            if mask is not None:
                indices = (builder.select(builder.icmp_unsigned("<", i, last), i, last) for i in indices)
            of_rows = [builder.mul(builder.load(_element_pointer(builder, places, i, INDEX)), width) for i in indices]

            def add(begin: ir.Value, mask: ir.Value | None) -> None:
                of_vector = _load(builder, vector, begin, mask)
                for row, total in zip(of_rows, totals, strict=True):
                    _multiply_add(builder, total, of_vector, _load(builder, rows, builder.add(row, begin), mask))

            _for_each_register(builder, width, add)
            _store(builder, horizontal_sums(builder, [builder.load(total) for total in totals]), out, first, mask)

        _for_each_register(builder, count, write)
        return ir.Constant(ir.LiteralStructType([]), [])

    return types.void(vector, rows, places, count, width, out), generate


@intrinsic
def gather_weighted_sum(_context, weights, scale, places, count, rows, width, out):
    """Write to `out` the sum of `scale` times `weights[i]` times row `places[i]`, for each i below `count`.

    All arguments except `scale`, `count` and `width` are addresses: of float32 weights, int64 indices, rows of `width`
    float32, and the output.
    """

    def generate(_, builder, __, arguments):
        weights, scale, places, count, rows, width, out = arguments
        whole = builder.mul(builder.udiv(count, INDEX(_ACCUMULATORS)), INDEX(_ACCUMULATORS))

        def write(first: ir.Value, mask: ir.Value | None) -> None:
            totals = [_allocate_vector(builder, 0.0) for _ in range(_ACCUMULATORS)]

            def add(total: ir.Value, index: ir.Value) -> None:
                weight = builder.load(_element_pointer(builder, weights, index, FLOAT))
                row = builder.mul(builder.load(_element_pointer(builder, places, index, INDEX)), width)
                vector = _load(builder, rows, builder.add(row, first), mask)
                _multiply_add(builder, total, broadcast(builder, weight), vector)

            with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(_ACCUMULATORS)) as (index, _):
                for place, total in enumerate(totals):
                    add(total, builder.add(index, INDEX(place)))
            with cgutils.for_range_slice(builder, whole, count, INDEX(1)) as (index, _):
                add(totals[0], index)
            a, b, c, d = (builder.load(total) for total in totals)
            sums = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
            _store(builder, builder.fmul(sums, broadcast(builder, scale)), out, first, mask)

        _for_each_register(builder, width, write)
        return ir.Constant(ir.LiteralStructType([]), [])

    return types.void(weights, scale, places, count, rows, width, out), generate


@intrinsic
def maximum(_context, numbers, count):
    """Return the maximum of `count` float32 at the address `numbers`, and of -1e30."""

    def generate(_, builder, __, arguments):
        numbers, count = arguments
        most = _allocate_vector(builder, _MINIMUM)

        def compare(first: ir.Value, mask: ir.Value | None) -> None:
            vector, before = _load(builder, numbers, first, mask, _MINIMUM), builder.load(most)
            builder.store(builder.select(builder.fcmp_ordered(">", vector, before), vector, before), most)

        _for_each_register(builder, count, compare)
        return _reduce(builder, "fmax", [builder.load(most)])

    return types.float32(numbers, count), generate


@intrinsic
def exp_and_sum(_context, numbers, count, less, out):
    """Write exp(x - less) of `count` float32 at the address `numbers` to `out`, and return the sum.

    x - less must be at most 0. `out` is an address, or 0 if only the sum is wanted.
    """

    def generate(_, builder, __, arguments):
        numbers, count, less, out = arguments
        total, by = _allocate_vector(builder, 0.0), broadcast(builder, less)
        is_written = builder.icmp_unsigned("!=", out, INDEX(0))

        def add(first: ir.Value, mask: ir.Value | None) -> None:
            powers = _exp(builder, builder.fsub(_load(builder, numbers, first, mask, _MINIMUM), by))
            with builder.if_then(is_written):
                _store(builder, powers, out, first, mask)
            builder.store(builder.fadd(builder.load(total), powers), total)

        _for_each_register(builder, count, add)
        return _sum(builder, builder.load(total))

    return types.float32(numbers, count, less, out), generate


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Exp of non-positive numbers, as `lm.kernels.scalar_math.exp`; 0 for the least ones."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    floor = cgutils.get_or_insert_function(builder.module, kind, f"llvm.floor.v{LANES}f32")

    def of(number: float | np.float32) -> ir.Value:
        return ir.Constant(_VECTOR, [float(number)] * LANES)

    def added(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    is_tiny = builder.fcmp_ordered("<", x, of(MIN_EXPONENT))
    x = builder.select(is_tiny, of(MIN_EXPONENT), x)
    whole = builder.call(floor, [added(x, of(LOG2E), of(0.5))])
    rest = added(whole, of(-LN2_LOW), added(whole, of(-LN2_HIGH), x))
    power = of(EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        power = added(power, rest, of(coefficient))
    power = builder.fadd(added(power, builder.fmul(rest, rest), rest), of(1.0))
    bits = ir.VectorType(BITS_32, LANES)
    exponent = builder.add(builder.fptosi(whole, bits), ir.Constant(bits, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(bits, [23] * LANES)), _VECTOR)
    return builder.select(is_tiny, _NOTHING, builder.fmul(power, scale))


def _element_pointer(builder: ir.IRBuilder, begin: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    number = kind.element if isinstance(kind, ir.VectorType) else kind
    size = 8 if number is INDEX else 4
    return builder.inttoptr(builder.add(begin, builder.mul(index, INDEX(size))), kind.as_pointer())


def _load(
    builder: ir.IRBuilder, begin: ir.Value, first: ir.Value, mask: ir.Value | None, otherwise: float = 0.0
) -> ir.Value:
    """Load a register; masked-out lanes get `otherwise`."""
    place = _element_pointer(builder, begin, first, _VECTOR)
    if mask is None:
        return builder.load(place, align=_BYTES)
    return _call_masked(
        builder, "load", _VECTOR, [place, BITS_32(_BYTES), mask, ir.Constant(_VECTOR, [otherwise] * LANES)]
    )


def _store(builder: ir.IRBuilder, numbers: ir.Value, begin: ir.Value, first: ir.Value, mask: ir.Value | None) -> None:
    """Store a register, or the lanes in a mask."""
    place = _element_pointer(builder, begin, first, _VECTOR)
    if mask is None:
        builder.store(numbers, place, align=_BYTES)
    else:
        _call_masked(builder, "store", ir.VoidType(), [numbers, place, BITS_32(_BYTES), mask])


def _call_masked(builder: ir.IRBuilder, name: str, kind: ir.Type, arguments: list[ir.Value]) -> ir.Value:
    whole = ir.FunctionType(kind, [argument.type for argument in arguments])
    called = cgutils.get_or_insert_function(builder.module, whole, f"llvm.masked.{name}.v{LANES}f32.p0")
    return builder.call(called, arguments)


def _for_each_register(
    builder: ir.IRBuilder, length: ir.Value, work: Callable[[ir.Value, ir.Value | None], None]
) -> None:
    """Call `work` at the start of each full register of a vector, and with a mask for the rest."""
    whole = builder.mul(builder.udiv(length, INDEX(LANES)), INDEX(LANES))
    with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(LANES)) as (first, _):
        work(first, None)
    with builder.if_then(builder.icmp_unsigned("<", whole, length)):
        rest = builder.trunc(builder.sub(length, whole), BITS_32)
        lanes = ir.Constant(ir.VectorType(BITS_32, LANES), list(range(LANES)))
        work(whole, builder.icmp_unsigned("<", lanes, broadcast(builder, rest)))


def _multiply_add(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> None:
    product = builder.fmul(a, b, flags=("contract",))
    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)


def _allocate_vector(builder: ir.IRBuilder, number: float) -> ir.Value:
    """Allocate a vector on the stack, filled with a number."""
    place = cgutils.alloca_once(builder, _VECTOR)
    builder.store(ir.Constant(_VECTOR, [number] * LANES), place)
    return place


def _sum(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    return _reduce(builder, "fadd", [FLOAT(0.0), vector])


def _reduce(builder: ir.IRBuilder, name: str, arguments: list[ir.Value]) -> ir.Value:
    """The sum of a vector, in any order, or its maximum."""
    kind = ir.FunctionType(FLOAT, [argument.type for argument in arguments])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{name}.v{LANES}f32")
    return builder.call(reduce, arguments, fastmath=("nnan", "reassoc"))
