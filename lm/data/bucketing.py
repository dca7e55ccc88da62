"""Batches of pairs of similar length, so that little of them is padding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import Ragged
from lm.data.batch import Batch
from lm.data.pair_layout import PairLayout, TwoSides
from lm.pseudorandom import Indices, mix

Integers = NDArray[np.int64]

_TWO_SIDES = TwoSides()


@dataclass(frozen=True)
class PairBatches:
    """Some pairs cut into batches.

    Attributes:
        sources: (pairs,) ids of the sources, in the order in which they are trained on.
        targets: (pairs,) ids to be predicted.
        ends: (batches,) where each batch ends.
        layout: how they are laid out in a batch.
    """

    sources: Ragged
    targets: Ragged
    ends: Integers
    layout: PairLayout

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self.ends)

    @property
    def firsts(self) -> list[int]:
        """The number of the first pair of each batch."""
        return [0, *self.ends[:-1].tolist()] if len(self) else []

    def batch(self, first: int, start: int, *, share: float = 1.0) -> Batch:
        """The rest, from pair `first` on, of the batch that it is in, or of such a share of this batch if that is less.

        Args:
            first: number of the pair in the order in which they are trained on.
            start: the id that comes before a target.
            share: of the pairs of the whole batch.
        """
        number = int(np.searchsorted(self.ends, first, side="right"))
        begin, end = (int(self.ends[number - 1]) if number else 0), int(self.ends[number])
        rows = np.arange(first, min(end, first + math.ceil(share * (end - begin))))
        return self.layout.batch(self.sources.take(rows), self.targets.take(rows), start=start)

    def permuted(self, key: Indices) -> PairBatches:
        """The same batches in another order, which follows from a key."""
        batches = Ragged(np.arange(len(self.sources)), self.ends)
        order = batches.take(np.argsort(mix(key ^ np.arange(len(self), dtype=np.uint64)), kind="stable"))
        return PairBatches(self.sources.take(order.values), self.targets.take(order.values), order.ends, self.layout)


def bucketed(
    sources: Ragged, targets: Ragged, *, tokens: int | None, rows: int | None, layout: PairLayout = _TWO_SIDES
) -> PairBatches:
    """Pairs sorted by length and cut into batches, each as large as the limits allow.

    Args:
        sources: (pairs,) ids.
        targets: (pairs,) ids.
        tokens: most positions of a batch on any side, padding included; one pair may have more.
        rows: most pairs of a batch.
        layout: says how long pairs are, and which are alike.
    """
    order, lengths = layout.order(sources, targets), layout.lengths(sources, targets)
    return PairBatches(sources.take(order), targets.take(order), _ends(lengths[order].tolist(), tokens, rows), layout)


def _ends(lengths: list[int], tokens: int | None, rows: int | None) -> Integers:
    """Where batches of pairs end that are so long: each takes pairs until the next is too much."""
    ends: list[int] = []
    start = longest = 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        count = place - start + 1
        if count > 1 and ((tokens and count * longest > tokens) or (rows and count > rows)):
            ends.append(place)
            start, longest = place, length
    return np.array([*ends, len(lengths)] if lengths else [], dtype=np.int64)
