"""Rows of different lengths, one after another in a single array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RaggedArray:
    """Rows of integers, or of several integers at each place.

    Attributes:
        values: of all rows, joined; may be read through mmap. A further dimension has the integers of a place.
        ends: (rows,) where each row ends in `values`.
    """

    values: NDArray[Any]
    ends: NDArray[Any]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | Sequence[Sequence[int]] | NDArray[Any]]) -> RaggedArray:
        """From lists or arrays."""
        values = _concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        return cls(values, np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def join(cls, parts: Sequence[RaggedArray]) -> RaggedArray:
        """The rows of several, one after another."""
        lengths = [part.lengths() for part in parts]
        return cls(
            _concatenate([part.values for part in parts]),
            np.cumsum(np.concatenate([np.empty(0, dtype=np.int64), *lengths])),
        )

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.ends)

    def lengths(self) -> Integers:
        """(rows,) how long each is."""
        return np.diff(self.ends, prepend=0)

    def row(self, number: int) -> NDArray[Any]:
        """One row."""
        start = self.ends[number - 1] if number else 0
        return self.values[start : self.ends[number]]

    def take(self, rows: NDArray[Any]) -> RaggedArray:
        """A copy of some rows, in the order given."""
        rows = rows.astype(np.int64)  # the row before the first is none, not the last number of an unsigned type
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        ends = np.cumsum(lengths)
        return RaggedArray(self.values[concatenate_ranges(starts, lengths)].astype(np.int64), ends)

    def grouped(self, ends: NDArray[Any]) -> RaggedArray:
        """Groups of neighbouring rows joined into one row each; `ends` says after how many rows each group ends."""
        return RaggedArray(self.values, np.append(0, self.ends)[ends])

    def framed(self, before: Sequence[int] | Integers, after: Sequence[int] | Integers) -> RaggedArray:
        """The rows with the same values put before and after each."""
        lengths = self.lengths()
        widths = lengths + len(before) + len(after)
        ends = np.cumsum(widths)
        values = np.empty((int(ends[-1]) if len(ends) else 0, *self.values.shape[1:]), dtype=np.int64)
        for place, value in enumerate(before):
            values[ends - widths + place] = value
        for place, value in enumerate(after[::-1], 1):
            values[ends - place] = value
        values[concatenate_ranges(ends - len(after) - lengths, lengths)] = self.values
        return RaggedArray(values, ends)

    def padded(self, value: int) -> Integers:
        """(rows, longest), and what further dimension there is, with `value` where a row has ended."""
        lengths = self.lengths()
        filled = np.full((len(self), int(lengths.max(initial=0)), *self.values.shape[1:]), value, dtype=np.int64)
        filled[np.arange(filled.shape[1]) < lengths[:, None]] = self.values
        return filled


def _concatenate(parts: Sequence[NDArray[Any]]) -> Integers:
    """Values one after another; none of no parts."""
    return np.concatenate(parts).astype(np.int64, copy=False) if parts else np.empty(0, dtype=np.int64)


def concatenate_ranges(starts: Integers, lengths: Integers) -> Integers:
    """The ranges of integers that begin at `starts` and have these lengths, joined."""
    ends = np.cumsum(lengths)
    offsets = np.repeat(starts - (ends - lengths), lengths)
    return offsets + np.arange(len(offsets))
