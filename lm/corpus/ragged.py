"""Ragged arrays: rows of different lengths, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Indices = NDArray[np.uint64]


@dataclass(frozen=True)
class RaggedArray:
    """Rows of integers, or of integer vectors.

    Attributes:
        values: all rows concatenated, possibly memory-mapped; a second dimension holds vectors.
        ends: (rows,) where each row ends in `values`.
    """

    values: NDArray[Any]
    ends: NDArray[Any]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int] | Sequence[Sequence[int]] | NDArray[Any]]) -> RaggedArray:
        values = _concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        return cls(values, np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[RaggedArray]) -> RaggedArray:
        lengths = [part.lengths() for part in parts]
        return cls(_concatenate([part.values for part in parts]), np.cumsum(_concatenate(lengths)))

    @classmethod
    def join_rows(cls, parts: Sequence[RaggedArray]) -> RaggedArray:
        """Join the rows of several arrays of as many rows, row by row."""
        rows, count = len(parts[0]), len(parts)
        order = np.arange(count * rows).reshape(count, rows).T.ravel()
        return cls.concatenate(parts).take(order).merge_rows(np.arange(count, count * rows + 1, count))

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> Integers:
        return np.diff(self.ends, prepend=0)

    def positions(self) -> Integers:
        """Return (values,) positions of the values in their rows."""
        return concatenate_ranges(np.zeros(len(self), dtype=np.int64), self.lengths())

    def row(self, number: int) -> NDArray[Any]:
        start = self.ends[number - 1] if number else 0
        return self.values[start : self.ends[number]]

    def take(self, rows: NDArray[Any]) -> RaggedArray:
        """Copy rows in the given order."""
        rows = rows.astype(np.int64)  # the row before the first is none, not the last number of an unsigned type
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        ends = np.cumsum(lengths)
        return RaggedArray(self.values[concatenate_ranges(starts, lengths)].astype(np.int64), ends)

    def merge_rows(self, ends: NDArray[Any]) -> RaggedArray:
        """Merge neighbouring rows; `ends` has the row index where each group ends."""
        return RaggedArray(self.values, np.append(0, self.ends)[ends])

    def wrap_rows(self, before: Any, after: Any) -> RaggedArray:
        """Prepend and append the same values to each row."""
        frame = RaggedArray.from_rows([np.reshape(side, (-1, *self.values.shape[1:])) for side in (before, after)])
        first = np.zeros(len(self), dtype=np.int64)
        return RaggedArray.join_rows([frame.take(first), self, frame.take(first + 1)])

    def to_padded(self, value: int) -> Integers:
        """Return a dense (rows, longest[, size]) array, padded with `value`."""
        lengths = self.lengths()
        filled = np.full((len(self), int(lengths.max(initial=0)), *self.values.shape[1:]), value, dtype=np.int64)
        filled[np.arange(filled.shape[1]) < lengths[:, None]] = self.values
        return filled


def _concatenate(parts: Sequence[NDArray[Any]]) -> Integers:
    return np.concatenate(parts).astype(np.int64, copy=False) if parts else np.empty(0, dtype=np.int64)


def concatenate_ranges(starts: Integers, lengths: Integers) -> Integers:
    """Concatenate the ranges of integers with these starts and lengths."""
    ends = np.cumsum(lengths)
    offsets = np.repeat(starts - (ends - lengths), lengths)
    return offsets + np.arange(len(offsets))


def hash64(x: Indices) -> Indices:
    """Hash 64-bit integers bijectively (finaliser of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
