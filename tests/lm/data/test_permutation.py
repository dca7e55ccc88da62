"""A pseudo-random permutation visits everything once, in an order of its own for each key."""

from __future__ import annotations

import numpy as np
import pytest

from lm.data.permutation import permute


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 4097])
def test_permute_is_a_permutation_for_every_key(size):
    indices = np.arange(size, dtype=np.uint64)
    for key in range(4):
        assert sorted(permute(indices, size, np.full(size, key, np.uint64))) == list(range(size))


def test_permute_scatters():
    """Neighbours do not stay neighbours, and keys give unrelated orders."""
    size, indices = 10_000, np.arange(10_000, dtype=np.uint64)
    orders = [permute(indices, size, np.full(size, key, np.uint64)).astype(float) for key in range(3)]
    for order in orders:
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
        assert abs(np.corrcoef(order, indices)[0, 1]) < 0.05
    assert abs(np.corrcoef(orders[0], orders[1])[0, 1]) < 0.05
