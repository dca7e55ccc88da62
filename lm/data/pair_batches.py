"""Batches of sentence pairs: bucketed, and laid out for encoder-decoders or decoder-only models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.config.model import ModelConfig
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch
from lm.data.bucketing import batch_ends
from lm.pseudorandom import Indices, hash64

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class EncoderDecoderLayout:
    """Layout of encoder-decoders: source and target in separate stacks."""

    sides = 1
    """Number of sides in one row."""
    unit = "tokens a side"
    """Unit of the batch size."""

    def lengths(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """Return (pairs,) row lengths: the longer side."""
        return np.maximum(sources.lengths(), targets.lengths())

    def order(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """Return (pairs,) indices with similar lengths together.

        Sorted by target length; source lengths alternately ascend and descend within equal target lengths, so that
        neighbours are similar on both sides.
        """
        source_lengths, target_lengths = sources.lengths(), targets.lengths()
        return np.lexsort((np.where(target_lengths % 2, source_lengths, -source_lengths), target_lengths))

    @property
    def for_scoring(self) -> EncoderDecoderLayout:
        return self

    def batch(self, sources: RaggedArray, targets: RaggedArray, *, start: int) -> Batch:
        """Return pairs as a batch; `start` is the first ID that the decoder reads."""
        return Batch.from_pairs(sources, targets, start=start)


@dataclass(frozen=True)
class DecoderOnlyLayout:
    """Layout of decoder-only models: source, start token and target in one sequence.

    Attributes:
        learns_source: whether source tokens are predicted too.

    Source: Liu et al. 2018, section 4.2.3.
    """

    learns_source: bool = False

    sides = 2
    unit = "tokens of both sides"

    def lengths(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """Return (pairs,) row lengths; the start token counts, the last token isn't read."""
        return sources.lengths() + targets.lengths()

    def order(self, sources: RaggedArray, targets: RaggedArray) -> Integers:
        """Return (pairs,) indices with similar lengths together."""
        return np.argsort(self.lengths(sources, targets), kind="stable")

    @property
    def for_scoring(self) -> DecoderOnlyLayout:
        """Layout for scoring, which predicts only targets."""
        return DecoderOnlyLayout()

    def batch(self, sources: RaggedArray, targets: RaggedArray, *, start: int) -> Batch:
        """Return pairs as a batch; `start` is the ID between source and target."""
        return Batch.from_pair_sequences(sources, targets, start=start, learns_source=self.learns_source)


PairLayout = EncoderDecoderLayout | DecoderOnlyLayout


def select_layout(model: ModelConfig, *, learns_source: bool = False) -> PairLayout:
    """Return the layout of a translation model.

    Args:
        learns_source: see `DecoderOnlyLayout`; ignored for encoder-decoders.
    """
    return DecoderOnlyLayout(learns_source) if model.decoder_only else EncoderDecoderLayout()


@dataclass(frozen=True)
class PairBatches:
    """Pairs divided into batches.

    Attributes:
        sources: (pairs,) source IDs, in training order.
        targets: (pairs,) target IDs.
        ends: (batches,) where each batch ends.
    """

    sources: RaggedArray
    targets: RaggedArray
    ends: Integers
    layout: PairLayout

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def firsts(self) -> list[int]:
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
        """Return the batches in another order, derived from a key."""
        batches = RaggedArray(np.arange(len(self.sources)), self.ends)
        order = batches.take(np.argsort(hash64(key ^ np.arange(len(self), dtype=np.uint64)), kind="stable"))
        return PairBatches(self.sources.take(order.values), self.targets.take(order.values), order.ends, self.layout)


def bucket_pairs(
    sources: RaggedArray, targets: RaggedArray, *, tokens: int | None, rows: int | None, layout: PairLayout
) -> PairBatches:
    """Bucket pairs by length into batches.

    Args:
        sources: (pairs,) IDs.
        targets: (pairs,) IDs.
        tokens: maximum positions of a batch per side, including padding; a single pair may exceed it.
    """
    order, lengths = layout.order(sources, targets), layout.lengths(sources, targets)
    ends = batch_ends(lengths[order], tokens=tokens, rows=rows)
    return PairBatches(sources.take(order), targets.take(order), ends, layout)
