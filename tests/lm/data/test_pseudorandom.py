"""A pseudo-random permutation visits everything once, in an order of its own for each key."""

import numpy as np
import pytest

from lm.corpus import hash64
from lm.data import permute_indices, uniform


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 4097])
def test_permute_is_a_permutation_for_every_key(size):
    indices = np.arange(size, dtype=np.uint64)
    for key in range(4):
        assert sorted(permute_indices(indices, size, np.full(size, key, np.uint64))) == list(range(size))


def test_mix_is_splitmix64():
    """The first outputs of the reference implementation (Vigna's splitmix64.c) from the seeds 0 and 1234567."""
    golden, outputs = 0x9E3779B97F4A7C15, [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = np.array([0, *(1234567 + index * golden for index in range(3))], dtype=np.object_) % 2**64
    assert hash64(states.astype(np.uint64)).tolist() == [0xE220A8397B1DCDAF, *outputs]


def test_the_order_is_that_of_earlier_versions():
    """Runs depend on it: one that another version has begun continues with the same windows."""
    indices, keys = np.arange(10, dtype=np.uint64), np.full(10, 7, np.uint64)
    assert permute_indices(indices, 10, keys).tolist() == [5, 1, 8, 6, 2, 7, 9, 4, 3, 0]
    assert permute_indices(indices[:5], 10**6, keys[:5]).tolist() == [22580, 187917, 696494, 47772, 85725]


def test_uniforms_are_spread_evenly_and_follow_from_the_key_of_their_row():
    keys = np.arange(300, dtype=np.uint64)
    drawn = uniform(keys, 500)
    assert abs(drawn.mean() - 0.5) < 5 / (12 * drawn.size) ** 0.5
    np.testing.assert_array_equal(uniform(keys[7:9], 20), drawn[7:9, :20])
