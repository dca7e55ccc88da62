"""Products of compiled code against sums in float64; a row's numbers depend on nothing but the row."""

import numpy as np
import pytest

pytest.importorskip("numba")

from lm.kernels.matmul import MIN_PACKED_FLOAT_ROWS, matmul
from lm.kernels.micro_kernels import INPUT_BLOCK
from tests.tolerances import assert_close

SHAPES = [
    (1, 1, 1), (1, 8, 64), (3, 17, 96), (4, 8, 64), (5, 33, 100), (9, 70, 31), (16, 40, 128), (31, 300, 700),
    (60, 65, 1120), (75, 65, 480),
]  # fmt: skip


def drawn(rows: int, outputs: int, inputs: int, *, is_int8: bool):
    of = np.random.default_rng([rows, outputs, inputs])
    weights = of.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    x, bias = (of.standard_normal(shape).astype(np.float32) for shape in ((rows, inputs), outputs))
    scales = of.uniform(0.5, 2.0, outputs).astype(np.float32)
    if is_int8:
        return weights, scales, bias, x
    return weights.astype(np.float32) / 127 * scales[:, None], np.empty(0, np.float32), bias, x


def multiplied(weights, scales, bias, x, *, threads: int = 1) -> np.ndarray:
    out = np.empty((len(x), len(weights)), np.float32)
    matmul(weights, scales, bias, x, out, False, threads)
    return out


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_matmuls_equal_float64(shape, is_int8):
    weights, scales, bias, x = drawn(*shape, is_int8=is_int8)
    wide = weights.astype(np.float64) * (scales[:, None] if is_int8 else 1.0)
    found = multiplied(weights, scales, bias, x)
    expected = x.astype(np.float64) @ wide.T + bias
    sizes = np.abs(x).astype(np.float64) @ np.abs(wide).T + np.abs(bias)
    bound = 1e-6 * sizes
    if is_int8:  # each input is rounded by half of a unit at most
        bound += np.abs(x).max(1, keepdims=True) / (2**15 - 1) / 2 * np.abs(wide).sum(1)
    assert (np.abs(found - expected) <= bound).all()
    again = found.copy()
    matmul(weights, scales, bias, x, again, True, 1)
    assert_close(again, 2 * found, terms=x.shape[1])


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_does_not_depend_on_batch_and_threads(shape, is_int8):
    weights, scales, bias, x = drawn(*shape, is_int8=is_int8)
    x = x if is_int8 else x[: MIN_PACKED_FLOAT_ROWS - 1]
    together = multiplied(weights, scales, bias, x)
    alone = np.concatenate([multiplied(weights, scales, bias, row[None]) for row in x])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, multiplied(weights, scales, bias, x, threads=2))


@pytest.mark.parametrize("inputs", [INPUT_BLOCK, 16 * 1024, 64 * 1024])
def test_the_largest_integers_do_not_overflow(inputs):
    weights, scales = np.full((8, inputs), -127, np.int8), np.ones(8, np.float32)
    found = multiplied(weights, scales, np.empty(0, np.float32), np.full((4, inputs), 3.0, np.float32))
    assert_close(found, -127 * 3.0 * inputs, terms=inputs)


@pytest.mark.parametrize("damage", [np.nan, np.inf])
@pytest.mark.parametrize("is_int8", [False, True])
def test_nan_is_propagated(damage, is_int8):
    weights, scales, bias, x = drawn(4, 8, 64, is_int8=is_int8)
    x[1, 5], x[3] = damage, 0.0
    found = multiplied(weights, scales, bias, x)
    assert not np.isfinite(found[1]).any()
    np.testing.assert_allclose(found[3], bias)
    assert np.isfinite(found[[0, 2]]).all()
