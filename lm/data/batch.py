"""Batches: token IDs and targets of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORE_INDEX
from lm.config.run_config import RunConfig
from lm.corpus.ragged import RaggedArray

Ids = NDArray[np.int64]

PADDING = 0
"""Padding ID; any token would do, because padding is neither attended to nor predicted."""


@dataclass(frozen=True)
class Batch:
    """Rows of token IDs, padded on the right.

    Attributes:
        inputs: (rows, length) IDs that the model reads; for encoder-decoders, the decoder.
        targets: (rows, length) ID to predict at each position, or IGNORE_INDEX.
        source: (rows, source length) IDs that an encoder reads; (rows, source length, 4) with dependency trees, see
            `lm.corpus.tree_positions`.
        source_lengths: (rows,) lengths of the sources.
        input_lengths: (rows,) lengths of the inputs, where targets don't tell: for masked models and classifiers, whose
            targets are (rows, 1).
    """

    inputs: Ids
    targets: Ids
    source: Ids | None = None
    source_lengths: Ids | None = None
    input_lengths: Ids | None = None

    @classmethod
    def from_rows(cls, rows: Sequence[NDArray[Any]], learned: Sequence[int | NDArray[np.bool_]]) -> Batch:
        """Return rows of IDs of which some are predicted.

        Args:
            rows: (tokens,) IDs of each row; the model reads all but the last.
            learned: of each row how many of the last tokens are predicted, or (tokens,) which ones; the first never is.
        """
        masks = [
            np.arange(len(row)) >= len(row) - which if isinstance(which, int) else which
            for row, which in zip(rows, learned, strict=True)
        ]
        inputs, following, mask = (
            RaggedArray.from_rows(parts)
            for parts in ([row[:-1] for row in rows], [row[1:] for row in rows], [row[1:] for row in masks])
        )
        targets = np.where(mask.to_padded(0) > 0, following.to_padded(IGNORE_INDEX), IGNORE_INDEX)
        return cls(inputs.to_padded(PADDING), targets)

    @property
    def rows(self) -> int:
        return len(self.inputs)

    @property
    def n_targets(self) -> int:
        return int((self.targets != IGNORE_INDEX).sum())

    @property
    def tokens(self) -> int:
        """Number of training tokens: targets, but for masked models and classifiers all tokens read."""
        return self.n_targets if self.input_lengths is None else int(self.input_lengths.sum())

    @property
    def lengths(self) -> Ids | None:
        """(rows,) number of inputs before the padding; None if there is no padding."""
        length, lengths = self.inputs.shape[1], self.input_lengths
        if lengths is None:
            lengths = ((self.targets != IGNORE_INDEX) * np.arange(1, length + 1)).max(axis=1, initial=0)
        return None if (lengths == length).all() else lengths

    def truncate(self, *, rows: int, length: int) -> Batch:
        """Return the first rows, truncated to a length."""
        return self.map_arrays(lambda ids: np.minimum(ids[:rows], length) if ids.ndim == 1 else ids[:rows, :length])

    def with_vocab_size(self, vocab_size: int) -> Batch:
        """Return a batch of the same shape with IDs below `vocab_size`, for timing."""
        return self.map_arrays(lambda ids: ids if ids.ndim == 1 else np.where(ids < 0, ids, ids % vocab_size))

    def split(self, rows: int | None) -> Iterator[Batch]:
        """Yield micro-batches of at most `rows` rows; the batch itself for None."""
        for start in range(0, self.rows, rows or self.rows):
            yield self.map_arrays(itemgetter(slice(start, start + (rows or self.rows))))

    def map_arrays(self, change: Callable[[Ids], Ids]) -> Batch:
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: None if ids is None else change(ids) for name, ids in arrays.items()}
        return Batch(**changed)


def batch_rows(config: RunConfig) -> int:
    """Return the number of sequences per optimizer step of text or examples."""
    training = config.training
    if training.batch_tokens is None:
        return training.batch_size
    return max(1, training.batch_tokens // config.model.context_length)


def micro_batch_rows(config: RunConfig, batch: Batch) -> int | None:
    """Return the number of sequences of a micro-batch on each rank; None for the whole batch.

    It is `micro_batch_size`, or what fits into the plan's `micro_batch_tokens`: as few passes as possible, of nearly
    equal size.
    """
    if config.training.micro_batch_size is not None or config.plan is None or config.plan.micro_batch_tokens is None:
        return config.training.micro_batch_size
    length = max(ids.shape[1] for ids in (batch.inputs, batch.source) if ids is not None)
    most = max(1, config.plan.micro_batch_tokens // length)
    rows = -(-batch.rows // config.plan.processes)
    return -(-rows // -(-rows // most))
