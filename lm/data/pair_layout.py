"""How pairs are laid out for a model: on two sides, or one after the other in a single sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lm.config.model import ModelConfig
from lm.corpus.ragged import Ragged
from lm.data.batch import Batch

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TwoSides:
    """An encoder reads the source, and a decoder the target beside it."""

    sides = 1
    """Of a pair that stand in one row."""
    unit = "tokens a side"
    """Of a batch."""

    def lengths(self, sources: Ragged, targets: Ragged) -> Integers:
        """(pairs,) how many positions of a row each takes: its longer side."""
        return np.maximum(sources.lengths(), targets.lengths())

    def order(self, sources: Ragged, targets: Ragged) -> Integers:
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

    def batch(self, sources: Ragged, targets: Ragged, *, start: int) -> Batch:
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

    def lengths(self, sources: Ragged, targets: Ragged) -> Integers:
        """(pairs,) how many positions of a row each takes; the last token is not read, and the start token is."""
        return sources.lengths() + targets.lengths()

    def order(self, sources: Ragged, targets: Ragged) -> Integers:
        """(pairs,) their numbers, those of like length together."""
        return np.argsort(self.lengths(sources, targets), kind="stable")

    @property
    def evaluated(self) -> OneSequence:
        """The layout of what is only scored, and that is the target."""
        return OneSequence()

    def batch(self, sources: Ragged, targets: Ragged, *, start: int) -> Batch:
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
