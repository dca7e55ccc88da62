"""Sums over vectors of any length, against those of float64: nothing behind a vector is read or written."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from lm.kernels.reductions import exp_and_sum, gather_dot_products, gather_weighted_sum, maximum  # noqa: E402
from tests.tolerances import approx, assert_close, ulps  # noqa: E402

LENGTHS = [1, 7, 8, 15, 16, 17, 33, 48, 100]


@numba.njit
def _products(vector, rows, places, out):
    gather_dot_products(
        vector.ctypes.data, rows.ctypes.data, places.ctypes.data, len(places), len(vector), out.ctypes.data
    )


@numba.njit
def _mix(weights, scale, places, rows, out):
    width = rows.shape[1]
    gather_weighted_sum(
        weights.ctypes.data, scale, places.ctypes.data, len(places), rows.ctypes.data, width, out.ctypes.data
    )


@numba.njit
def _largest(x):
    return maximum(x.ctypes.data, len(x))


@numba.njit
def _exponentials(x, less, out):
    address = np.int64(out.ctypes.data) if len(out) else np.int64(0)
    return exp_and_sum(x.ctypes.data, len(x), np.float32(less), address)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("width", LENGTHS)
@pytest.mark.parametrize("count", [1, 3, 16, 21])
def test_products_with_rows(count, width):
    rows, vector, places = numbers(23, width), numbers(width), np.arange(count)[::-1].copy() + 1
    out = np.full(count + 1, 7.0, np.float32)
    _products(vector, rows, places, out[:count])
    assert_close(out[:count], rows[places].astype(np.float64) @ vector, terms=width)
    assert out[count] == 7.0


@pytest.mark.parametrize("width", LENGTHS)
@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_mixtures_of_rows(count, width):
    rows, weights, places = numbers(11, width), numbers(count), np.arange(count)[::-1].copy() + 1
    out = np.full(width + 1, 7.0, np.float32)
    _mix(weights, np.float32(0.5), places, rows, out[:width])
    assert_close(out[:width], 0.5 * weights.astype(np.float64) @ rows[places], terms=count)
    assert out[width] == 7.0


@pytest.mark.parametrize("length", LENGTHS)
def test_the_largest_and_exponentials(length):
    """What is as good as nothing adds nothing."""
    x, out = 20 * numbers(length) - 5, np.full(length + 1, 7.0, np.float32)
    x[0] = -np.inf if length > 1 else x[0]
    most = _largest(x)
    assert most == x.max()
    expected = np.exp((x - np.float32(most)).astype(np.float64))
    assert _exponentials(x, most, out[:length]) == approx(expected.sum(), terms=length)
    assert _exponentials(x, most, out[:0]) == approx(expected.sum(), terms=length)
    np.testing.assert_allclose(out[:length], expected, rtol=ulps(8), atol=1e-37)
    assert out[length] == 7.0
