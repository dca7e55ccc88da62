"""Training data: batches of token IDs and targets from prepared tokens, with a reproducible sample order.

Here are `Batch`, the interface of training data, and bucketing by length; `windows` and `pairs` implement it. Batches
are NumPy arrays: imports neither torch nor models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import IGNORE_INDEX, RunConfig
from lm.corpus import Indices, RaggedArray, hash64
from lm.text.parallel_text import DependencyHeads
from lm.tokenizer.chat_template import LanguageTag

Ids = NDArray[np.int64]
T = TypeVar("T")

_FEISTEL_ROUNDS = 6
_EPOCHS_APART = 1 << 20  # members of an ensemble
PADDING = 0
"""Padding: of IDs any would do, as it is neither attended to nor predicted; of tree positions it must be zero."""


@dataclass(frozen=True)
class Batch:
    """Rows of token IDs, padded on the right.

    Attributes:
        inputs: (rows, length) IDs that the model reads; for encoder-decoders, the decoder.
        targets: (rows, length) ID to predict at each position, or IGNORE_INDEX.
        source: (rows, source length) IDs that an encoder reads; (rows, source length, 4) with dependency trees, see
            `lm.corpus.encode`.
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
    def from_rows(cls, rows: Sequence[NDArray[Any]], learned: Sequence[NDArray[np.bool_]]) -> Batch:
        """Return rows of IDs of which some are predicted.

        Args:
            rows: (tokens,) IDs of each row; the model reads all but the last.
            learned: (tokens,) of each row which ones are predicted; the first never is.
        """
        ragged, is_target = RaggedArray.from_rows(rows), RaggedArray.from_rows(learned).to_padded(0)[:, 1:] > 0
        ids = ragged.to_padded(PADDING)
        is_input = np.arange(ids.shape[1] - 1) < ragged.lengths()[:, None] - 1
        return cls(np.where(is_input, ids[:, :-1], PADDING), np.where(is_target, ids[:, 1:], IGNORE_INDEX))

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


class ReferenceTranslation(NamedTuple):
    """A sentence to translate, with its reference translation.

    Attributes:
        tag: language tag of the target, for bidirectional models.
        heads: of the source's words, for models with dependency trees.
    """

    source: str
    target: str
    tag: LanguageTag | None = None
    heads: DependencyHeads | None = None


class TrainingData(ABC):
    """Data that a model is trained on; the order is a pure function of (data, seed, samples consumed).

    Attributes:
        holds_pairs: whether it is for translation models.
        holds_conversations: whether the assistant's tokens of conversations are learned.
        samples: windows, examples or pairs per epoch.
        tokens: predicted tokens per epoch.
        steps_per_epoch: mean number of batches per epoch.
        validation_bytes: UTF-8 bytes of the text of validation targets.
        tag: default target language of bidirectional models.
    """

    holds_pairs = False
    holds_conversations = False
    samples: int
    tokens: int
    steps_per_epoch: float
    validation_bytes: int
    tag: LanguageTag | None = None

    @abstractmethod
    def batch(self, consumed: int) -> Batch:
        """Return the batch after `consumed` samples."""

    def member_batch(self, consumed: int, member: int) -> Batch:
        """Return the batch of a member of an ensemble, each of which has its own order.

        Pairs, whose batches have different numbers of rows, have one order.
        """
        return self.batch(consumed + (0 if self.holds_pairs else member * _EPOCHS_APART * self.samples))

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, each target once."""

    def set_total_steps(self, steps: int) -> None:  # noqa: B027 (most data do not depend on it)
        """Set the total number of steps, which decides when BPE dropout ends; again when the end of a run is moved."""

    def references(self, limit: int | None = None) -> list[ReferenceTranslation]:  # noqa: ARG002
        """Return the validation sentences to translate, or the first `limit` of them."""
        return []


def shuffle_samples(samples: Indices, size: int, seed: int) -> tuple[Ids, Indices]:
    """Return where samples are in epochs of a size, each in an order of its own, and a key for each one's epoch."""
    epochs, indices = np.divmod(samples, np.uint64(size))
    keys = hash64(hash64(np.array([seed], dtype=np.uint64)) ^ epochs)
    return permute_indices(indices, size, keys).astype(np.int64), keys


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` consecutive items, as `itertools.batched` of Python 3.12; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def length_batches(
    lengths: Sequence[int] | Ids,
    *,
    tokens: int | None = None,
    rows: int | None = None,
    order: Ids | None = None,
) -> list[Ids]:
    """Return batches of items of similar length, each as large as the limits allow, to reduce padding.

    Args:
        lengths: (items,) length of each item.
        tokens: maximum positions of a batch, including padding; a single item may exceed it.
        order: (items,) indices with similar lengths together [default: sorted by length].

    Returns:
        The item indices of each batch.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(lengths, kind="stable") if order is None else order
    lengths, batches, start = lengths[order], [], 0
    while start < len(lengths):
        stop = len(lengths) if rows is None else min(len(lengths), start + rows)
        if tokens is not None:
            if lengths[start]:
                stop = min(stop, start + max(1, tokens // int(lengths[start])))
            padded = np.maximum.accumulate(lengths[start:stop]) * np.arange(1, stop - start + 1)
            stop = start + max(1, int(np.searchsorted(padded, tokens, side="right")))
        batches.append(order[start:stop])
        start = stop
    return batches


def uniform(keys: Indices, count: int) -> NDArray[np.float64]:
    """Return (keys, count) pseudo-random numbers in [0, 1), derived from key and column."""
    drawn = hash64(hash64(keys)[:, None] ^ np.arange(count, dtype=np.uint64))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute_indices(indices: Indices, size: int, keys: Indices) -> Indices:
    """Return where each index is in a pseudo-random permutation of 0 … size - 1, without storing it.

    A Feistel network over the next power of four, repeated until the value is inside (Black and Rogaway 2002).

    Args:
        indices: values below `size`.
        size: of the permuted range.
        keys: one per index; each key gives another permutation.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    low = (np.uint64(1) << half) - np.uint64(1)
    permuted = indices.astype(np.uint64)
    outside = np.ones(len(permuted), dtype=bool)
    while outside.any():
        left, right = permuted[outside] >> half, permuted[outside] & low
        for number in range(_FEISTEL_ROUNDS):
            left, right = right, left ^ (hash64(right ^ hash64(keys[outside] ^ np.uint64(number))) & low)
        permuted[outside] = (left << half) | right
        outside = permuted >= np.uint64(size)
    return permuted
