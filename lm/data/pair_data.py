"""Training data of sentence pairs: sample order, directions, BPE dropout and batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.data import ParallelTextConfig
from lm.config.model import check_heads_given
from lm.config.run_config import RunConfig
from lm.corpus.ragged import RaggedArray
from lm.corpus.store import SPLITS, read_held_out
from lm.data.batch import Batch
from lm.data.pair_batches import EncoderDecoderLayout, PairBatches, PairLayout, bucket_pairs, select_layout
from lm.data.pair_tokens import FramedPairs, StoredPairs, translation_directions
from lm.data.training_data import ReferenceTranslation, TrainingData
from lm.errors import InputError, UsageError
from lm.pseudorandom import Indices, hash64, permute_indices

Integers = NDArray[np.int64]

_ENCODER_DECODER = EncoderDecoderLayout()
_POOL_SIZE = 1 << 14
"""Pairs that are bucketed together: enough to reduce padding, few enough to prepare during training."""

_EVALUATION_TOKENS = 8192
"""Positions of a validation batch per side, including padding; the loss doesn't depend on it."""

_BATCH_ORDER_KEY = np.uint64(2)  # distinguishes the keys of batch permutations


class _Position(NamedTuple):
    """Position of a run in its data.

    Attributes:
        offset: consumed pairs of the pool.
    """

    epoch: int
    pool: int
    offset: int


class PairOrder:
    """Order of training pairs: a permutation per epoch, divided into pools of equal size.

    Attributes:
        samples: pairs per epoch.
        starts: (pools + 1,) boundaries of the pools in the order of an epoch.
    """

    def __init__(self, *, samples: int, seed: int) -> None:
        self.samples = samples
        pools = max(1, round(samples / _POOL_SIZE))
        self.starts = np.arange(pools + 1) * samples // pools
        self._key = hash64(np.array([seed], dtype=np.uint64))

    def position(self, consumed: int) -> _Position:
        """Return the position after `consumed` pairs."""
        epoch, index = divmod(consumed, self.samples)
        pool = int(np.searchsorted(self.starts, index, side="right")) - 1
        return _Position(epoch, pool, index - int(self.starts[pool]))

    def key(self, epoch: int) -> Indices:
        """Return the (1,) key from which all randomness of an epoch is derived."""
        return hash64(self._key ^ np.uint64(epoch))

    def pair_indices(self, epoch: int, pool: int) -> Integers:
        """Return the indices of the pairs of a pool, in the order of the epoch."""
        indices = np.arange(self.starts[pool], self.starts[pool + 1], dtype=np.uint64)
        return permute_indices(indices, self.samples, np.repeat(self.key(epoch), len(indices))).astype(np.int64)


class PairData(TrainingData):
    """Training data of sentence pairs, optionally in both directions.

    The pairs of a pool are bucketed into batches, which are permuted. With BPE dropout words are segmented again in
    each epoch, before bucketing.

    Attributes:
        samples: pairs per epoch; twice the number of pairs with both directions.
        tokens: target tokens per epoch, without BPE dropout.
        steps_per_epoch: estimated from the first pool.
        validation_bytes: UTF-8 bytes of the validation targets.
        tag: of the first direction.
    """

    holds_pairs = True

    def __init__(
        self,
        stored: StoredPairs,
        config: ParallelTextConfig,
        *,
        batch_tokens: int | None = None,
        rows: int | None = None,
        seed: int,
        context: int | None = None,
        layout: PairLayout = _ENCODER_DECODER,
    ) -> None:
        """Create batches of the pairs in a folder.

        Args:
            batch_tokens: maximum positions of a batch per side, including padding; a single pair may exceed it.
                Decoder-only models get twice as many, so that batches have as many pairs.
            context: maximum row length.

        Raises:
            InputError: there are no pairs, or a pair is too long for the context.
            UsageError: the tokenizer has no merges, or no language tags.
        """
        if batch_tokens is None and rows is None:
            raise UsageError("batches of pairs need a size: batch_tokens or batch_size")
        self._stored, self._batch_rows, self._layout = stored, rows, layout
        self._batch_tokens = None if batch_tokens is None else layout.sides * batch_tokens
        self._directions = translation_directions(stored, bidirectional=config.bidirectional)
        self.tag = self._directions[0].tag
        self._framed = FramedPairs(stored, dropout=config.bpe_dropout, context=context, layout=layout)
        if context is not None:
            self._check_lengths(context)
        self._start = self._framed.special_tokens(self._directions[0]).start  # of the one vocabulary of targets
        self._count()
        self._order = PairOrder(samples=self.samples, seed=seed)
        self._has_dropout, self._dropout_until = config.bpe_dropout > 0, config.bpe_dropout_until
        self._dropout_samples: int | None = None  # consumed when BPE dropout ends; None: it lasts for the whole run
        self._pool: tuple[tuple[int, int, bool], PairBatches] | None = None  # the last pool built, with its key
        first = self._pool_batches(0, 0, dropout=self._has_dropout)
        self.steps_per_epoch = len(first) * self.samples / int(self._order.starts[1])

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        training, stored = config.training, StoredPairs.open(folder)
        check_heads_given(config.model, are_given=stored.manifest.has_dependency_heads)
        return cls(
            stored,
            config.parallel,
            batch_tokens=training.batch_tokens,
            rows=training.batch_size if training.batch_tokens is None else None,
            seed=training.seed,
            context=config.model.position_limit,
            layout=select_layout(config.model, learns_source=training.source_loss > 0),
        )

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """Return the pairs after `consumed` ones; the rest of the batch if they end within one."""
        epoch, pool, offset = self._order.position(consumed)
        until = self._dropout_samples
        dropout = self._has_dropout and (until is None or consumed - offset < until)
        return self._pool_batches(epoch, pool, dropout=dropout).batch(offset, self._start, fraction=fraction)

    def set_total_steps(self, steps: int) -> None:
        """Set the number of steps: BPE dropout ends after the configured fraction of them, at the end of a pool."""
        if self._dropout_until < 1.0:
            self._dropout_samples = round(self._dropout_until * steps / self.steps_per_epoch * self.samples)

    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, bucketed by length, one direction after the other."""
        numbers = np.arange(self._stored.manifest.splits["validation"].documents)
        for direction in self._directions:
            sources, targets = self._framed.rows("validation", direction, numbers)
            batches = bucket_pairs(
                sources, targets, tokens=_EVALUATION_TOKENS, rows=None, layout=self._layout.for_scoring
            )
            yield from (batches.batch(first, self._start) for first in batches.firsts)

    def describe_batch_size(self) -> str:
        if self._batch_tokens is None:
            return f"{self.batch(0).rows} pairs"
        return f"up to {self._batch_tokens:,} {self._layout.unit}"

    def references(self, limit: int | None = None) -> list[ReferenceTranslation]:
        """Return the validation split as text, or its first `limit` sentences; directions alternate."""
        references: list[ReferenceTranslation] = []
        for texts in read_held_out(self._stored.folder):
            heads = tuple(texts["heads"]) if "heads" in texts else None
            references += [
                ReferenceTranslation(texts[direction.source], texts[direction.target], direction.tag, heads)
                for direction in self._directions
            ]
            if limit is not None and len(references) >= limit:
                return references[:limit]
        return references

    def _check_lengths(self, context: int) -> None:
        """Raise InputError if a pair does not fit into the context."""
        if self._layout.sides == 1:
            noun = "sentence"
            longest = max(split.longest for split in self._stored.manifest.splits.values()) + 1 + (self.tag is not None)
        else:
            noun = "pair"
            longest = max(
                self._framed.max_length(split, direction) for split in SPLITS for direction in self._directions
            )
        if longest > context:
            raise InputError(f"the longest {noun} takes {longest} tokens, more than the context of {context}")

    def _count(self) -> None:
        train, validation = (self._stored.manifest.splits[split] for split in SPLITS)
        names = {"target": ("tokens", "bytes"), "source": ("source_tokens", "source_bytes")}
        targets = [names[direction.target] for direction in self._directions]
        self.samples = train.documents * len(targets)
        self.tokens = sum(getattr(train, tokens) + train.documents for tokens, _ in targets)
        self.validation_bytes = sum(getattr(validation, text_bytes) for _, text_bytes in targets)

    def _pool_batches(self, epoch: int, pool: int, *, dropout: bool) -> PairBatches:
        """Return the batches of a pool; the last pool is cached."""
        key, cached = (epoch, pool, dropout), self._pool
        if cached is None or cached[0] != key:
            cached = self._pool = key, self._build_pool(epoch, pool, dropout)
        return cached[1]

    def _build_pool(self, epoch: int, pool: int, dropout: bool) -> PairBatches:
        key, samples = self._order.key(epoch), self._order.pair_indices(epoch, pool)
        sources, targets = self._encode_rows(samples, key if dropout else None)
        batches = bucket_pairs(sources, targets, tokens=self._batch_tokens, rows=self._batch_rows, layout=self._layout)
        return batches.permuted(hash64(hash64(key ^ np.uint64(pool)) ^ _BATCH_ORDER_KEY))

    def _encode_rows(self, samples: Integers, key: Indices | None) -> tuple[RaggedArray, RaggedArray]:
        """Return source and target IDs of samples; those of the first direction come first in the numbering."""
        direction_samples, pairs = np.divmod(samples, self.samples // len(self._directions))
        indices, parts = [], []
        for number, direction in enumerate(self._directions):
            selected = np.flatnonzero(direction_samples == number)
            keys = None if key is None else hash64(key ^ samples[selected].astype(np.uint64))
            indices.append(selected)
            parts.append(self._framed.rows("train", direction, pairs[selected], keys))
        order = np.argsort(np.concatenate(indices), kind="stable")
        sources, targets = (RaggedArray.concatenate(side).take(order) for side in zip(*parts, strict=True))
        return sources, targets
