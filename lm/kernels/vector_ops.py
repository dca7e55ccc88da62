"""Functions of numbers and vectors for compiled code: exp, erf, norms, activations, RoPE, reductions, top k.

Vectors are contiguous float32. Reductions over short vectors use explicit SIMD instructions, as compilers vectorise
loops for long ones; the last elements, too few to fill a register, are loaded and stored with a mask.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lm.kernels.jit import njit
from lm.kernels.micro_kernels import (
    BITS_32,
    FLOAT,
    INDEX,
    LANES,
    broadcast,
    call,
    horizontal_sums,
    multiply_add_floats,
    zeros,
)

RELU, GELU, GELU_TANH, RELU2, SWIGLU, SILU = range(6)
ACTIVATIONS = {
    "relu": RELU, "gelu": GELU, "gelu-tanh": GELU_TANH, "relu2": RELU2, "swiglu": SWIGLU, "silu": SILU,
}  # fmt: skip
_ROOT_OF_HALF, _ROOT_OF_2_BY_PI = np.float32(0.7071067811865476), np.float32(0.7978845608028654)
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
MIN_EXPONENT, _MAX_EXPONENT = np.float32(-87.0), np.float32(88.0)
EXP_COEFFICIENTS = (
    np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3),
    np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1),
)  # fmt: skip
"""Coefficients of the minimax polynomial, highest powers first."""


@intrinsic
def as_variable(_context, value):
    """Make a constant a variable: a function would be compiled again for each constant argument."""
    kind = types.unliteral(value)

    def generate(_, __, ___, arguments):
        return arguments[0]

    return kind(kind), generate


@intrinsic
def as_pointer(_context, address):
    """Convert an integer to a pointer, for `numba.carray`."""

    def generate(_, builder, __, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@njit(error_model="numpy")
def exp(x):
    """Exp of a float32, with a relative error of 1e-7; loops of it vectorise.

    Source: expf of the Cephes library (Moshier 1992).
    """
    x = min(max(x, MIN_EXPONENT), _MAX_EXPONENT)
    whole = np.floor(x * LOG2E + np.float32(0.5))
    remainder = x - whole * LN2_HIGH - whole * LN2_LOW
    sum_ = EXP_COEFFICIENTS[0] * remainder + EXP_COEFFICIENTS[1]
    sum_ = sum_ * remainder + EXP_COEFFICIENTS[2]
    sum_ = sum_ * remainder + EXP_COEFFICIENTS[3]
    sum_ = sum_ * remainder + EXP_COEFFICIENTS[4]
    sum_ = sum_ * remainder + EXP_COEFFICIENTS[5]
    sum_ = sum_ * remainder * remainder + remainder + np.float32(1.0)
    return sum_ * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(error_model="numpy")
def erf(x):
    """Erf of a float32, to 6e-7. Source: Abramowitz and Stegun 1964, formula 7.1.26."""
    size = abs(x)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * size)
    sum_ = np.float32(1.061405429)
    sum_ = sum_ * t - np.float32(1.453152027)
    sum_ = sum_ * t + np.float32(1.421413741)
    sum_ = sum_ * t - np.float32(0.284496736)
    sum_ = sum_ * t + np.float32(0.254829592)
    result = np.float32(1.0) - sum_ * t * exp(-size * size)
    return result if x >= 0 else -result


@njit(fastmath=True, error_model="numpy")
def normalise(x, weight, bias, epsilon, is_layer_norm, out):
    """LayerNorm of a vector (if `is_layer_norm`) or RMSNorm into `out`, which may be `x`; an empty bias is none."""
    width = len(x)
    mean = np.float32(0.0)
    if is_layer_norm:
        for i in range(width):
            mean += x[i]
        mean /= np.float32(width)
    square = np.float32(0.0)
    for i in range(width):
        square += (x[i] - mean) * (x[i] - mean)
    scale = np.float32(1.0) / np.sqrt(square / np.float32(width) + epsilon)
    for i in range(width):
        out[i] = (x[i] - mean) * scale * weight[i]
    for i in range(len(bias)):
        out[i] += bias[i]


@njit(error_model="numpy")
def activate(x, activation):
    """Apply an activation to a vector in place; for SWIGLU that of the gate, silu."""
    one, half = np.float32(1.0), np.float32(0.5)
    if activation in {RELU, RELU2}:
        for i in range(len(x)):
            x[i] = max(x[i], np.float32(0.0))
            if activation == RELU2:
                x[i] *= x[i]
    elif activation == GELU:
        for i in range(len(x)):
            x[i] = half * x[i] * (one + erf(x[i] * _ROOT_OF_HALF))
    elif activation == GELU_TANH:
        for i in range(len(x)):
            inner = _ROOT_OF_2_BY_PI * (x[i] + np.float32(0.044715) * x[i] * x[i] * x[i])
            x[i] *= one - one / (exp(inner + inner) + one)
    elif activation in {SWIGLU, SILU}:
        for i in range(len(x)):
            x[i] /= one + exp(-x[i])


@njit(fastmath=True, error_model="numpy")
def rotate(x, cos, sin):
    """Rotate a head in place, as `lm.model.positions.Rotation`; features beyond the tables stay."""
    half = len(cos) // 2
    for i in range(half):
        first, second = x[i], x[half + i]
        x[i] = first * cos[i] + second * sin[i]
        x[half + i] = second * cos[half + i] + first * sin[half + i]


_ACCUMULATORS = 4
"""Independent accumulators, as an addition must wait for the one before."""

_VECTOR, _ALL = ir.VectorType(FLOAT, LANES), ir.Constant(ir.VectorType(ir.IntType(1), LANES), [1] * LANES)
_BYTES = 4
_MINIMUM = -1e30
"""Less than any other number."""
_BLOCK = 64
"""Adjacent numbers whose maximum is computed first: few blocks hold one of the top k."""


@intrinsic
def gather_dot_products(_context, vector, rows, places, count, width, out):
    """Write to `out` the dot product of a vector and row `places[i]`, for each i below `count`.

    All arguments except `count` and `width` are addresses: of `width` float32, of rows of as many, of int64 indices,
    and of the float32 output. A register of rows is processed at a time, at the end some repeatedly.
    """

    def generate(context, builder, __, arguments):
        vector, rows, places, count, width, out = arguments
        last = builder.sub(count, INDEX(1))

        def write(first: ir.Value, mask: ir.Value) -> None:
            totals = [cgutils.alloca_once_value(builder, zeros(FLOAT)) for _ in range(LANES)]
            indices = (builder.add(first, INDEX(lane)) for lane in range(LANES))
            if mask is not _ALL:
                indices = (builder.select(builder.icmp_unsigned("<", i, last), i, last) for i in indices)
            of_rows = [builder.mul(builder.load(_element_pointer(builder, places, i, INDEX)), width) for i in indices]

            def add(begin: ir.Value, mask: ir.Value) -> None:
                of_vector = _load(builder, vector, begin, mask)
                for row, total in zip(of_rows, totals, strict=True):
                    of_row = _load(builder, rows, builder.add(row, begin), mask)
                    builder.store(multiply_add_floats(builder, builder.load(total), of_vector, of_row), total)

            _for_each_register(builder, width, add)
            _store(builder, horizontal_sums(builder, [builder.load(total) for total in totals]), out, first, mask)

        _for_each_register(builder, count, write)
        return context.get_dummy_value()

    return types.void(vector, rows, places, count, width, out), generate


@intrinsic
def gather_weighted_sum(_context, weights, scale, places, count, rows, width, out):
    """Write to `out` the sum of `scale` times `weights[i]` times row `places[i]`, for each i below `count`.

    All arguments except `scale`, `count` and `width` are addresses: of float32 weights, int64 indices, rows of `width`
    float32, and the output.
    """

    def generate(context, builder, __, arguments):
        weights, scale, places, count, rows, width, out = arguments
        whole = builder.mul(builder.udiv(count, INDEX(_ACCUMULATORS)), INDEX(_ACCUMULATORS))

        def write(first: ir.Value, mask: ir.Value) -> None:
            totals = [cgutils.alloca_once_value(builder, zeros(FLOAT)) for _ in range(_ACCUMULATORS)]

            def add(total: ir.Value, index: ir.Value) -> None:
                weight = broadcast(builder, builder.load(_element_pointer(builder, weights, index, FLOAT)))
                row = builder.mul(builder.load(_element_pointer(builder, places, index, INDEX)), width)
                of_row = _load(builder, rows, builder.add(row, first), mask)
                builder.store(multiply_add_floats(builder, builder.load(total), weight, of_row), total)

            with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(_ACCUMULATORS)) as (index, _):
                for place, total in enumerate(totals):
                    add(total, builder.add(index, INDEX(place)))
            with cgutils.for_range_slice(builder, whole, count, INDEX(1)) as (index, _):
                add(totals[0], index)
            a, b, c, d = (builder.load(total) for total in totals)
            sums = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
            _store(builder, builder.fmul(sums, broadcast(builder, scale)), out, first, mask)

        _for_each_register(builder, width, write)
        return context.get_dummy_value()

    return types.void(weights, scale, places, count, rows, width, out), generate


@intrinsic
def maximum(_context, numbers, count):
    """Return the maximum of `count` float32 at the address `numbers`, and of -1e30."""

    def generate(_, builder, __, arguments):
        numbers, count = arguments
        most = cgutils.alloca_once_value(builder, _constant(_MINIMUM))

        def compare(first: ir.Value, mask: ir.Value) -> None:
            vector, before = _load(builder, numbers, first, mask, _MINIMUM), builder.load(most)
            builder.store(builder.select(builder.fcmp_ordered(">", vector, before), vector, before), most)

        _for_each_register(builder, count, compare)
        return _reduce(builder, "fmax", builder.load(most))

    return types.float32(numbers, count), generate


@intrinsic
def exp_and_sum(_context, numbers, count, less, out):
    """Write exp(x - less) of `count` float32 at the address `numbers` to `out`, and return the sum.

    x - less must be at most 0. `out` is an address, or 0 if only the sum is wanted.
    """

    def generate(_, builder, __, arguments):
        numbers, count, less, out = arguments
        total, by = cgutils.alloca_once_value(builder, zeros(FLOAT)), broadcast(builder, less)
        is_written = builder.icmp_unsigned("!=", out, INDEX(0))

        def add(first: ir.Value, mask: ir.Value) -> None:
            powers = _exp(builder, builder.fsub(_load(builder, numbers, first, mask, _MINIMUM), by))
            with builder.if_then(is_written):
                _store(builder, powers, out, first, mask)
            builder.store(builder.fadd(builder.load(total), powers), total)

        _for_each_register(builder, count, add)
        return _reduce(builder, "fadd", FLOAT(0.0), builder.load(total))

    return types.float32(numbers, count, less, out), generate


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Exp of non-positive numbers, as `lm.kernels.vector_ops.exp`; 0 for the least ones."""

    def multiply_add(a: ir.Value, b: float | np.float32 | ir.Value, c: float | np.float32 | ir.Value) -> ir.Value:
        b, c = (value if isinstance(value, ir.Value) else _constant(value) for value in (b, c))
        return multiply_add_floats(builder, c, a, b)

    is_tiny = builder.fcmp_ordered("<", x, _constant(MIN_EXPONENT))
    x = builder.select(is_tiny, _constant(MIN_EXPONENT), x)
    whole = call(builder, f"floor.v{LANES}f32", _VECTOR, [multiply_add(x, LOG2E, 0.5)])
    rest = multiply_add(whole, -LN2_LOW, multiply_add(whole, -LN2_HIGH, x))
    power = _constant(EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        power = multiply_add(power, rest, coefficient)
    power = builder.fadd(multiply_add(power, builder.fmul(rest, rest), rest), _constant(1.0))
    bits = ir.VectorType(BITS_32, LANES)
    exponent = builder.add(builder.fptosi(whole, bits), ir.Constant(bits, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(bits, [23] * LANES)), _VECTOR)
    return builder.select(is_tiny, zeros(FLOAT), builder.fmul(power, scale))


def _constant(number: float | np.float32) -> ir.Value:
    return ir.Constant(_VECTOR, [float(number)] * LANES)


def _element_pointer(builder: ir.IRBuilder, begin: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    size = 8 if kind is INDEX else _BYTES
    return builder.inttoptr(builder.add(begin, builder.mul(index, INDEX(size))), kind.as_pointer())


def _load(builder: ir.IRBuilder, begin: ir.Value, first: ir.Value, mask: ir.Value, otherwise: float = 0.0) -> ir.Value:
    """Load a register; masked-out lanes get `otherwise`."""
    arguments = [_element_pointer(builder, begin, first, _VECTOR), BITS_32(_BYTES), mask, _constant(otherwise)]
    return call(builder, f"masked.load.v{LANES}f32.p0", _VECTOR, arguments)


def _store(builder: ir.IRBuilder, numbers: ir.Value, begin: ir.Value, first: ir.Value, mask: ir.Value) -> None:
    """Store the lanes in a mask."""
    arguments = [numbers, _element_pointer(builder, begin, first, _VECTOR), BITS_32(_BYTES), mask]
    call(builder, f"masked.store.v{LANES}f32.p0", ir.VoidType(), arguments)


def _for_each_register(builder: ir.IRBuilder, length: ir.Value, work: Callable[[ir.Value, ir.Value], None]) -> None:
    """Call `work` at the start of each register of a vector, with the mask of its elements.

    LLVM makes plain loads and stores of those with a constant mask.
    """
    whole = builder.mul(builder.udiv(length, INDEX(LANES)), INDEX(LANES))
    with cgutils.for_range_slice(builder, INDEX(0), whole, INDEX(LANES)) as (first, _):
        work(first, _ALL)
    with builder.if_then(builder.icmp_unsigned("<", whole, length)):
        rest = builder.trunc(builder.sub(length, whole), BITS_32)
        lanes = ir.Constant(ir.VectorType(BITS_32, LANES), list(range(LANES)))
        work(whole, builder.icmp_unsigned("<", lanes, broadcast(builder, rest)))


def _reduce(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """The sum of a vector, in any order, or its maximum."""
    return call(builder, f"vector.reduce.{name}.v{LANES}f32", FLOAT, arguments, fastmath=("nnan", "reassoc"))


@njit
def _insert(value, position, values, indices, count):
    """Insert a number into the top k so far, behind equal ones; return how many there are."""
    at = min(count, len(values) - 1)
    while at and values[at - 1] < value:
        values[at], indices[at] = values[at - 1], indices[at - 1]
        at -= 1
    values[at], indices[at] = value, position
    return min(count + 1, len(values))


@njit
def _top_k_of_row(scores, values, indices):
    """Fill `values` and `indices` with the top k, in order; of equal ones the first one first."""
    count, last, begin_of_scores = 0, len(values) - 1, scores.ctypes.data
    for begin in range(0, len(scores), _BLOCK):
        end = min(begin + _BLOCK, len(scores))
        if count > last and maximum(begin_of_scores + _BYTES * begin, end - begin) <= values[last]:
            continue
        for i in range(begin, end):
            if count <= last or scores[i] > values[last]:
                count = _insert(scores[i], i, values, indices, count)


@njit(is_entry=True, nogil=True)
def top_k(logits, filtered, values, indices, logprobs):
    """Find the top k filtered logits of each row, the first of equal ones first, and their log-probabilities.

    Args:
        logits: (rows, n) float32, unfiltered; they give the log-probabilities.
        filtered: (rows, n) float32.
        values: (rows, k) float32, output; k is at most n.
        indices: (rows, k) int64, output.
        logprobs: (rows, k) float32, output.
    """
    number = logits.shape[1]
    for row in range(len(logits)):
        _top_k_of_row(filtered[row], values[row], indices[row])
        of_row = logits.ctypes.data + _BYTES * row * number
        row_maximum = maximum(of_row, number)
        normaliser = row_maximum + np.log(exp_and_sum(of_row, number, row_maximum, 0))
        for i in range(len(indices[row])):
            logprobs[row, i] = logits[row, indices[row, i]] - normaliser
