"""What a training step reads: rows of tokens, and which of them are to be predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORE_INDEX
from lm.config.run import RunConfig
from lm.corpus.ragged import RaggedArray

Ids = NDArray[np.int64]

_PADDING = 0
"""What rows are padded with: any token would do, since nothing attends to it and nothing follows it."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, padded on the right to the longest.

    Attributes:
        inputs: (rows, length) ids that the model reads; of an encoder-decoder, its decoder.
        targets: (rows, length) the id to be predicted at each position; IGNORED where none is.
        source: (rows, source length) ids that an encoder reads; (rows, source length, 4) where they come with trees,
            see `lm.corpus.tree_positions`.
        source_lengths: (rows,) how many of them are real.
        source_targets: (rows, length) like `targets`, of the source within a row, where it is predicted too.
        input_lengths: (rows,) how many inputs are real, where targets do not tell: of masked tokens, and of texts with
            labels, whose targets are (rows, 1).
    """

    inputs: Ids
    targets: Ids
    source: Ids | None = None
    source_lengths: Ids | None = None
    source_targets: Ids | None = None
    input_lengths: Ids | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]], predicted: Sequence[int]) -> Batch:
        """Rows of ids of which the last ones are predicted, each from all that are before it.

        Args:
            rows: (tokens,) ids of each row, at least one; the model reads all but the last.
            predicted: how many tokens of each row count, at most all but the first.
        """
        inputs, following = (
            RaggedArray.from_rows([row[:-1] for row in rows]),
            RaggedArray.from_rows([row[1:] for row in rows]),
        )
        only_read, targets = following.lengths() - np.array(predicted), following.to_padded(IGNORE_INDEX)
        targets[np.arange(targets.shape[1]) < only_read[:, None]] = IGNORE_INDEX
        return cls(inputs.to_padded(_PADDING), targets)

    @classmethod
    def of_pairs(cls, sources: RaggedArray, targets: RaggedArray, *, start: int) -> Batch:
        """Sources with their targets, of which every token is predicted: teacher forcing.

        Args:
            sources: (rows,) ids that the encoder reads, with trees or without.
            targets: (rows,) ids that the decoder predicts, the end of the text included.
            start: the id that the decoder reads before them.
        """
        predicted = targets.to_padded(IGNORE_INDEX)
        inputs = np.concatenate([np.full((len(targets), 1), start), predicted[:, :-1]], axis=1)
        return cls(
            inputs=np.where(inputs == IGNORE_INDEX, _PADDING, inputs),
            targets=predicted,
            source=sources.to_padded(_PADDING),
            source_lengths=sources.lengths(),
        )

    @classmethod
    def of_texts(cls, texts: Sequence[NDArray[Any]], labels: Sequence[int]) -> Batch:
        """Texts that are read whole, and the number of the label of each."""
        inputs = RaggedArray.from_rows(texts)
        targets = np.array(labels, dtype=np.int64)[:, None]
        return cls(inputs.to_padded(_PADDING), targets, input_lengths=inputs.lengths())

    @classmethod
    def of_sequences(
        cls, sources: RaggedArray, targets: RaggedArray, *, start: int, learns_source: bool = False
    ) -> Batch:
        """Sources with their targets behind them, each pair a row, of which every token of the target is predicted.

        Args:
            sources: (rows,) ids that come first.
            targets: (rows,) ids that are predicted, the end of the text included.
            start: the id between them.
            learns_source: whether the tokens of the source, from the second on, are `source_targets`.
        """
        halves = np.arange(2 * len(sources)).reshape(2, -1).T.flatten()
        rows = RaggedArray.concatenate([sources.wrap_rows((), (start,)), targets]).take(halves)
        ids = rows.merge_rows(np.arange(2, 2 * len(sources) + 1, 2)).to_padded(IGNORE_INDEX)
        inputs, following = np.where(ids[:, 1:] == IGNORE_INDEX, _PADDING, ids[:, :-1]), ids[:, 1:]
        places, lengths = np.arange(following.shape[1]), sources.lengths()[:, None]
        return cls(
            inputs=inputs,
            targets=np.where(places < lengths, IGNORE_INDEX, following),
            source_targets=np.where(places < lengths - 1, following, IGNORE_INDEX) if learns_source else None,
        )

    @property
    def rows(self) -> int:
        """How many samples the batch holds."""
        return len(self.inputs)

    @property
    def predicted(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORE_INDEX).sum())

    @property
    def tokens(self) -> int:
        """How many tokens are learned from: the targets, but where they are few of what is read, all that is read."""
        return self.predicted if self.input_lengths is None else int(self.input_lengths.sum())

    @property
    def lengths(self) -> Ids | None:
        """(rows,) how many inputs of each row come before its padding, which has no targets; None if all do."""
        length, lengths = self.inputs.shape[1], self.input_lengths
        if lengths is None:
            lengths = ((self.targets != IGNORE_INDEX) * np.arange(1, length + 1)).max(axis=1, initial=0)
        return None if (lengths == length).all() else lengths

    def part(self, *, rows: int, length: int) -> Batch:
        """The first rows, cut to a length."""
        return self.each(lambda ids: np.minimum(ids[:rows], length) if ids.ndim == 1 else ids[:rows, :length])

    def within(self, vocab_size: int) -> Batch:
        """The same shape with ids of a smaller vocabulary, to try out what such a batch takes."""
        return self.each(lambda ids: _within(ids, vocab_size))

    def split(self, rows: int | None) -> Iterator[Batch]:
        """Parts of at most `rows` rows each; the batch itself for None."""
        for start in range(0, self.rows, rows or self.rows):
            yield self.each(itemgetter(slice(start, start + (rows or self.rows))))

    def each(self, change: Callable[[Ids], Ids]) -> Batch:
        """The batch with the same change made to each of its arrays."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: None if ids is None else change(ids) for name, ids in arrays.items()}
        return Batch(**changed)


def _within(ids: Ids, vocab_size: int) -> Ids:
    """Ids of a smaller vocabulary; lengths are none, and neither are places in trees, which stand beside ids."""
    if ids.ndim == 1:
        return ids
    if ids.ndim == 3:
        return np.concatenate((ids[..., :1] % vocab_size, ids[..., 1:]), axis=-1)
    return np.where(ids == IGNORE_INDEX, IGNORE_INDEX, ids % vocab_size)


def batch_rows(config: RunConfig) -> int:
    """Sequences in an optimizer step, of text or of examples: as many as asked for, or as its tokens fill."""
    training = config.training
    if training.batch_tokens is None:
        return training.batch_size
    return max(1, training.batch_tokens // config.model.context_length)


def micro_batch_rows(config: RunConfig, batch: Batch) -> int | None:
    """Sequences of a batch in one pass through the model of each process; None: all at once.

    As many as `micro_batch_size` says, or as fit into the plan's `micro_batch_tokens`: as few passes as possible, of
    equal size up to one sequence.
    """
    if config.training.micro_batch_size is not None or config.plan is None or config.plan.micro_batch_tokens is None:
        return config.training.micro_batch_size
    length = max(ids.shape[1] for ids in (batch.inputs, batch.source) if ids is not None)
    most = max(1, config.plan.micro_batch_tokens // length)
    rows = -(-batch.rows // config.plan.processes)
    return -(-rows // -(-rows // most))
