"""Functions of numbers and vectors for compiled code: addresses, exp, erf, norms, activations, rotary positions.

Vectors are contiguous float32.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lm.kernels.jit import njit

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
