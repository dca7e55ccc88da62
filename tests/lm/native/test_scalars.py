"""Functions of single numbers, against the library's."""

from __future__ import annotations

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from lm.native.scalars import error_function, exponential, widened  # noqa: E402


@numba.njit
def _all(x, exponentials, errors):
    for i in range(len(x)):
        exponentials[i] = exponential(x[i])
        errors[i] = error_function(x[i])


@numba.njit
def _widened(bits, out):
    for i in range(len(bits)):
        out[i] = widened(bits[i])


def test_exponentials_and_error_functions_are_the_librarys():
    x = np.concatenate((np.linspace(-87, 88, 5001), np.linspace(-4, 4, 5001), [0.0, -0.0])).astype(np.float32)
    exponentials, errors = np.empty_like(x), np.empty_like(x)
    _all(x, exponentials, errors)
    np.testing.assert_allclose(exponentials, np.exp(x.astype(np.float64)), rtol=3e-7)
    np.testing.assert_allclose(errors, [math.erf(value) for value in x], rtol=0, atol=6e-7)


def test_sixteen_bits_are_a_bfloat16():
    numbers = np.array([1.0, -2.5, 3e38, 0.0, 1e-30], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    out = np.empty(len(bits), np.float32)
    _widened(bits, out)
    np.testing.assert_array_equal(out, (bits.astype(np.uint32) << 16).view(np.float32))
    np.testing.assert_allclose(out, numbers, rtol=2**-7)
