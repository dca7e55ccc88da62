"""Windows of different lengths in batches with little padding, and their scores in reading order again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm.data.bucketing import length_batches
from lm.evaluation.windows import Ids

_FULL = 0.9
"""The share of a batch's positions that are real from which on it is full enough to be read as it is."""
_READ_AHEAD = 16
"""Batches of windows that are put in order of length together where they are not."""


class Tokens(Protocol):
    """What windows of all kinds have."""

    @property
    def tokens(self) -> Ids:
        """What is read at once."""
        ...


W = TypeVar("W", bound=Tokens)
T = TypeVar("T")


class Packing(Generic[W]):
    """Puts windows into batches: in reading order; or, where they would be padded much, some read ahead, by length."""

    def __init__(self, windows: Iterable[W], size: int) -> None:
        """Of windows in reading order, and batches of so many."""
        self._windows, self._size = iter(windows), size
        self._packs: deque[list[NDArray[np.int64]]] = deque()  # for each pack, the numbers of the windows in each batch

    def batches(self) -> Iterator[list[W]]:
        """The batches, each as it is asked for."""
        while pack := list(islice(self._windows, self._size)):
            lengths = [len(window.tokens) for window in pack]
            parts = [np.arange(len(pack))]
            if sum(lengths) < _FULL * len(pack) * max(lengths):
                pack += islice(self._windows, (_READ_AHEAD - 1) * self._size)
                parts = length_batches([len(window.tokens) for window in pack], rows=self._size)
            self._packs.append(parts)
            yield from ([pack[place] for place in part] for part in parts)

    def unpacked(self, scored: Iterable[Sequence[T]]) -> Iterator[list[T]]:
        """What was made of the windows of each batch, in reading order, as soon as that is whole."""
        held: dict[int, T] = {}
        done = 0
        for batch in scored:
            held |= zip(self._packs[0][done].tolist(), batch, strict=True)
            done += 1
            if done == len(self._packs[0]):
                self._packs.popleft()
                yield [held[place] for place in range(len(held))]
                held, done = {}, 0
