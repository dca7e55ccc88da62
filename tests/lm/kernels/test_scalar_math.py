"""Functions of single numbers, against the library's."""

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from lm.kernels.scalar_math import erf, exp  # noqa: E402
from tests.tolerances import ulps  # noqa: E402


@numba.njit
def _all(x, exponentials, errors):
    for i in range(len(x)):
        exponentials[i] = exp(x[i])
        errors[i] = erf(x[i])


def test_exponentials_and_error_functions_are_the_librarys():
    x = np.concatenate((np.linspace(-87, 88, 5001), np.linspace(-4, 4, 5001), [0.0, -0.0])).astype(np.float32)
    exponentials, errors = np.empty_like(x), np.empty_like(x)
    _all(x, exponentials, errors)
    np.testing.assert_allclose(exponentials, np.exp(x.astype(np.float64)), rtol=ulps(2.5))
    np.testing.assert_allclose(errors, [math.erf(value) for value in x], rtol=0, atol=ulps(5))
