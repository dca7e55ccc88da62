"""Counter-based pseudo-random numbers and permutations, as pure functions of keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.uint64]

_ROUNDS = 6


def hash64(x: Indices) -> Indices:
    """Hash 64-bit integers bijectively (finaliser of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(keys: Indices, count: int) -> NDArray[np.float64]:
    """Return (keys, count) pseudo-random numbers in [0, 1), derived from key and column."""
    drawn = hash64(hash64(keys)[:, None] ^ np.arange(count, dtype=np.uint64))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute_indices(indices: Indices, size: int, keys: Indices) -> Indices:
    """Return where each index is in a pseudo-random permutation of 0 … size - 1, without storing it.

    A Feistel network over the next power of four, repeated until the value is inside (Black and Rogaway 2002).

    Args:
        indices: values below `size`.
        size: of the permuted range.
        keys: one per index; each key gives another permutation.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    low = (np.uint64(1) << half) - np.uint64(1)
    permuted = indices.astype(np.uint64)
    outside = np.ones(len(permuted), dtype=bool)
    while outside.any():
        left, right = permuted[outside] >> half, permuted[outside] & low
        for number in range(_ROUNDS):
            left, right = right, left ^ (hash64(right ^ hash64(keys[outside] ^ np.uint64(number))) & low)
        permuted[outside] = (left << half) | right
        outside = permuted >= np.uint64(size)
    return permuted
