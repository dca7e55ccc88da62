"""Which tokens come next: a pure function of the corpus, the seed and the number of samples consumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.uint64]

_ROUNDS = 6


class TokenReader(Protocol):
    """A sequence of tokens that can be read in parts, such as a split of `lm.data.shards`."""

    def __len__(self) -> int:
        """Number of tokens."""
        ...

    def read(self, start: int, stop: int) -> NDArray[np.integer]:
        """The tokens from start to stop."""
        ...


def _mix(x: Indices) -> Indices:
    """A bijection of 64-bit integers that scatters them (the finaliser of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permute(indices: Indices, size: int, keys: Indices) -> Indices:
    """Where each index lands in a pseudo-random permutation of 0 … size - 1; no list is shuffled or kept.

    A Feistel network over the next power of four, walked until the value falls inside (Black and Rogaway 2002).

    Args:
        indices: values below `size`.
        size: of the permuted range.
        keys: one for each index; each key is another permutation.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    low = (np.uint64(1) << half) - np.uint64(1)
    permuted = indices.astype(np.uint64)
    outside = np.ones(len(permuted), dtype=bool)
    while outside.any():
        left, right = permuted[outside] >> half, permuted[outside] & low
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mix(right ^ _mix(keys[outside] ^ np.uint64(number))) & low)
        permuted[outside] = (left << half) | right
        outside = permuted >= np.uint64(size)
    return permuted


class WindowOrder:
    """The order in which training sees the windows of a corpus.

    Every epoch visits disjoint windows, each once, in an order and from an offset of its own.

    Attributes:
        windows: how many there are in an epoch.
    """

    def __init__(self, *, tokens: int, context: int, seed: int) -> None:
        """For a corpus of `tokens` > `context` tokens; a window holds context + 1, its last being only a target."""
        self.context = context
        self.windows = max(1, tokens // context - 1)
        self._offsets = np.uint64(tokens - self.windows * context)
        self._key = _mix(np.array([seed], dtype=np.uint64))

    def starts(self, first: int, count: int) -> list[int]:
        """Where the windows of samples first … first + count - 1 start in the corpus."""
        samples = np.arange(first, first + count, dtype=np.uint64)
        epochs, places = np.divmod(samples, np.uint64(self.windows))
        keys = _mix(self._key ^ epochs)
        windows = permute(places, self.windows, keys)
        starts = windows * np.uint64(self.context) + _mix(keys) % self._offsets
        return [int(start) for start in starts]

    def batch(self, tokens: TokenReader, first: int, count: int) -> NDArray[np.int64]:
        """(count, context + 1) tokens of samples first … first + count - 1."""
        rows = [tokens.read(start, start + self.context + 1) for start in self.starts(first, count)]
        return np.stack(rows).astype(np.int64)


def evaluation_batches(tokens: TokenReader, *, context: int, rows: int) -> Iterator[NDArray[np.int64]]:
    """Disjoint windows that predict every token but the first exactly once.

    Yields:
        (up to rows, context + 1) tokens, and last one window with what is left.
    """
    predicted = len(tokens) - 1
    whole = predicted // context
    for first in range(0, whole, rows):
        count = min(rows, whole - first)
        span = tokens.read(first * context, (first + count) * context + 1).astype(np.int64)
        yield np.stack([span[row * context : (row + 1) * context + 1] for row in range(count)])
    if predicted % context:
        yield tokens.read(whole * context, len(tokens)).astype(np.int64)[None]
