"""Sentence pairs in batches: bucketed by length, and laid out on two sides or as one sequence for a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.config.model import ModelConfig
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch
from lm.data.bucketing import batch_ends
from lm.pseudorandom import Indices, mix

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TwoSides:
    """An encoder reads the source, and a decoder the target beside it."""

    sides = 1
    """Of a pair that stand in one row."""
    unit = "tokens a side"
    """Of a batch."""

    def lengths(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """(pairs,) how many positions of a row each takes: its longer side."""
        return np.maximum(sources.lengths(), targets.lengths())

    def order(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """(pairs,) their numbers, those of like length together.

        They are sorted by their targets; sources of equally long targets become longer and shorter in turn, so that
        neighbours are alike on both sides.
        """
        of_source, of_target = sources.lengths(), targets.lengths()
        return np.lexsort((np.where(of_target % 2, of_source, -of_source), of_target))

    @property
    def evaluated(self) -> TwoSides:
        """The layout of what is only scored."""
        return self

    def batch(self, sources: RaggedArray, targets: RaggedArray, *, start: int) -> Batch:
        """The batch of some pairs; `start` is the id that the decoder reads first."""
        return Batch.of_pairs(sources, targets, start=start)


@dataclass(frozen=True)
class OneSequence:
    """One stack reads the source, the token that starts a target, and the target.

    Attributes:
        learns_source: whether the tokens of the source are predicted as well.

    Source: Liu et al. 2018, section 4.2.3.
    """

    learns_source: bool = False

    sides = 2
    unit = "tokens of both sides"

    def lengths(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """(pairs,) how many positions of a row each takes; the last token is not read, and the start token is."""
        return sources.lengths() + targets.lengths()

    def order(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """(pairs,) their numbers, those of like length together."""
        return np.argsort(self.lengths(sources, targets), kind="stable")

    @property
    def evaluated(self) -> OneSequence:
        """The layout of what is only scored, and that is the target."""
        return OneSequence()

    def batch(self, sources: RaggedArray, targets: RaggedArray, *, start: int) -> Batch:
        """The batch of some pairs; `start` is the id between source and target."""
        return Batch.of_sequences(sources, targets, start=start, learns_source=self.learns_source)


PairLayout = TwoSides | OneSequence


def layout_of(model: ModelConfig, *, learns_source: bool = False) -> PairLayout:
    """How pairs are laid out for a model that translates.

    Args:
        model: its config.
        learns_source: see `OneSequence`; there is nothing that an encoder could predict.
    """
    return OneSequence(learns_source) if model.decoder_only else TwoSides()


@dataclass(frozen=True)
class PairBatches:
    """Some pairs cut into batches.

    Attributes:
        sources: (pairs,) ids of the sources, in the order in which they are trained on.
        targets: (pairs,) ids to be predicted.
        ends: (batches,) where each batch ends.
        layout: how they are laid out in a batch.
    """

    sources: RaggedArray
    targets: RaggedArray
    ends: Integers
    layout: PairLayout

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self.ends)

    @property
    def firsts(self) -> list[int]:
        """The number of the first pair of each batch."""
        return [0, *self.ends[:-1].tolist()] if len(self) else []

    def batch(self, first: int, start: int, *, fraction: float = 1.0) -> Batch:
        """Return the rest, from pair `first` on, of the batch that contains it; at most `fraction` of that batch.

        Args:
            first: number of the pair in training order.
            start: ID that precedes a target.
            fraction: of the pairs of the whole batch.
        """
        number = int(np.searchsorted(self.ends, first, side="right"))
        begin, end = (int(self.ends[number - 1]) if number else 0), int(self.ends[number])
        rows = np.arange(first, min(end, first + math.ceil(fraction * (end - begin))))
        return self.layout.batch(self.sources.take(rows), self.targets.take(rows), start=start)

    def permuted(self, key: Indices) -> PairBatches:
        """The same batches in another order, which follows from a key."""
        batches = RaggedArray(np.arange(len(self.sources)), self.ends)
        order = batches.take(np.argsort(mix(key ^ np.arange(len(self), dtype=np.uint64)), kind="stable"))
        return PairBatches(self.sources.take(order.values), self.targets.take(order.values), order.ends, self.layout)


def bucketed(
    sources: RaggedArray, targets: RaggedArray, *, tokens: int | None, rows: int | None, layout: PairLayout
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
    ends = batch_ends(lengths[order], tokens=tokens, rows=rows)
    return PairBatches(sources.take(order), targets.take(order), ends, layout)
