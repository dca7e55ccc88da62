"""What a training step reads, and what gives it: the next batch is a function of how far training has come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORED

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, padded on the right to the longest.

    Attributes:
        inputs: (rows, length) ids that the model reads; of an encoder-decoder, its decoder.
        targets: (rows, length) the id to be predicted at each position; IGNORED where none is.
        source: (rows, source length) ids that an encoder reads.
        source_lengths: (rows,) how many of them are real.
    """

    inputs: Ids
    targets: Ids
    source: Ids | None = None
    source_lengths: Ids | None = None

    @property
    def rows(self) -> int:
        """How many samples the batch holds."""
        return len(self.inputs)

    @property
    def predicted(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORED).sum())

    def part(self, *, rows: int, length: int) -> Batch:
        """The first rows, cut to a length."""
        source = None if self.source is None else self.source[:rows, :length]
        lengths = None if self.source_lengths is None else np.minimum(self.source_lengths[:rows], length)
        return Batch(self.inputs[:rows, :length], self.targets[:rows, :length], source, lengths)

    def within(self, vocab_size: int) -> Batch:
        """The same shape with ids of a smaller vocabulary, to try out what such a batch takes."""
        source = None if self.source is None else self.source % vocab_size
        return Batch(self.inputs % vocab_size, self.targets % vocab_size, source, self.source_lengths)

    def split(self, rows: int | None) -> Iterator[Batch]:
        """Parts of at most `rows` rows each; the batch itself for None."""
        for start in range(0, self.rows, rows or self.rows):
            part = slice(start, start + (rows or self.rows))
            yield Batch(
                self.inputs[part],
                self.targets[part],
                None if self.source is None else self.source[part],
                None if self.source_lengths is None else self.source_lengths[part],
            )


class TrainingData(Protocol):
    """What a model is trained on; its order is a pure function of (data, seed, samples consumed).

    Attributes:
        samples: in one epoch: windows, examples or pairs.
        tokens: predicted in one epoch.
        steps_per_epoch: batches in one epoch, on average.
        validation_bytes: UTF-8 bytes of text that the targets of the validation split stand for.
    """

    samples: int
    tokens: int
    steps_per_epoch: float
    validation_bytes: int

    def batch(self, consumed: int, *, share: float = 1.0) -> Batch:
        """The batch that follows `consumed` samples, or such a share of its rows, rounded up."""
        ...

    def validation(self) -> Iterator[Batch]:
        """The whole validation split, each target once; nothing where there is none."""
        ...

    def plan(self, steps: int) -> None:
        """Be told how many steps the run takes in all: what lasts for a share of them ends there, as BPE dropout does.

        It may be told again when the end of a run is moved; until then, such things last for the whole run.
        """
        ...


def padded(rows: list[Ids], *, value: int) -> Ids:
    """Rows of different lengths as (rows, longest), filled up with `value`."""
    filled = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    return filled
