"""Vector functions of a layer: norms, activations, rotary positions. Rows are contiguous float32."""

from __future__ import annotations

import numpy as np

from lm.kernels.jit import njit
from lm.kernels.scalar_math import erf, exp

RELU, GELU, GELU_TANH, RELU2, SWIGLU, SILU = range(6)
ACTIVATIONS = {
    "relu": RELU, "gelu": GELU, "gelu-tanh": GELU_TANH, "relu2": RELU2, "swiglu": SWIGLU, "silu": SILU,
}  # fmt: skip
_ROOT_OF_HALF, _ROOT_OF_2_BY_PI = np.float32(0.7071067811865476), np.float32(0.7978845608028654)


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
    if activation == RELU:
        for i in range(len(x)):
            x[i] = max(x[i], np.float32(0.0))
    elif activation == RELU2:
        for i in range(len(x)):
            x[i] = max(x[i], np.float32(0.0)) * max(x[i], np.float32(0.0))
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
