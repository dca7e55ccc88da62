"""Pairs as training data: their order in each epoch, their directions, BPE dropout, and the batches of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lm.config.data import ParallelConfig
from lm.config.model import check_heads_given
from lm.config.run import RunConfig
from lm.corpus.manifest import SPLITS
from lm.corpus.pairs import StoredPairs, open_pairs
from lm.corpus.ragged import RaggedArray
from lm.data.batch import Batch
from lm.data.pair_batches import PairBatches, PairLayout, TwoSides, bucketed, layout_of
from lm.data.pair_tokens import FramedPairs, directions
from lm.data.training_data import Reference, TrainingData, too_large
from lm.errors import Advice, InputError, UsageError
from lm.pseudorandom import Indices, mix, permute

Integers = NDArray[np.int64]

_TWO_SIDES = TwoSides()
_POOL = 1 << 14
"""Pairs that are sorted by length together: so many that little of their batches is padding, and so few that the
batches of an epoch are made while training continues."""

_EVALUATION_TOKENS = 8192
"""Of a batch of validation, on either side and padding included. The loss does not depend on it."""

_BATCHES = np.uint64(2)  # keeps the keys that permute batches apart from others made from the key of an epoch


class _Place(NamedTuple):
    """Where a run is in its data.

    Attributes:
        epoch: epochs that are over.
        pool: the pool of this epoch.
        offset: pairs of the pool that are over.
    """

    epoch: int
    pool: int
    offset: int


class PairOrder:
    """The order in which training sees pairs: an epoch is a permutation of them, cut into pools of equal size.

    Attributes:
        samples: pairs in an epoch.
        starts: (pools + 1,) where each pool starts in the order of an epoch, and where the last one ends.
    """

    def __init__(self, *, samples: int, seed: int) -> None:
        """For so many pairs, at least one."""
        self.samples = samples
        pools = max(1, round(samples / _POOL))
        self.starts = np.arange(pools + 1) * samples // pools
        self._key = mix(np.array([seed], dtype=np.uint64))

    def place(self, consumed: int) -> _Place:
        """Where a run is that has seen so many pairs."""
        epoch, place = divmod(consumed, self.samples)
        pool = int(np.searchsorted(self.starts, place, side="right")) - 1
        return _Place(epoch, pool, place - int(self.starts[pool]))

    def key(self, epoch: int) -> Indices:
        """(1,) what all that is random in an epoch follows from."""
        return mix(self._key ^ np.uint64(epoch))

    def pairs(self, epoch: int, pool: int) -> Integers:
        """(pairs,) the numbers of the pairs of a pool, in the order of the epoch."""
        places = np.arange(self.starts[pool], self.starts[pool + 1], dtype=np.uint64)
        return permute(places, self.samples, np.repeat(self.key(epoch), len(places))).astype(np.int64)


class PairData(TrainingData):
    """Training data of pairs, in both directions if asked.

    The pairs of a pool are sorted by length and cut into batches, and the batches permuted. With BPE dropout all words
    are segmented again in each epoch, and the lengths that count are those that this gives.

    Attributes:
        samples: pairs in an epoch; with both directions each pair counts twice.
        tokens: targets in an epoch, without BPE dropout.
        steps_per_epoch: batches in an epoch: as the first pool of the first epoch has it.
        validation_bytes: UTF-8 bytes of the targets of the validation split.
        tag: of the first direction.
    """

    holds_pairs = True

    def __init__(
        self,
        stored: StoredPairs,
        config: ParallelConfig,
        *,
        batch_tokens: int | None = None,
        rows: int | None = None,
        seed: int,
        context: int | None = None,
        layout: PairLayout = _TWO_SIDES,
    ) -> None:
        """Batches of the pairs in a folder.

        Args:
            stored: the folder.
            config: directions and BPE dropout.
            batch_tokens: most positions of a batch on either side, padding included; one pair may have more. Where
                both sides are one sequence, it has twice as many, so that there are as many pairs in a batch.
            rows: most pairs of a batch.
            seed: of the order and of BPE dropout.
            context: most positions of a row. What BPE dropout makes longer is left as it is.
            layout: of the batches.

        Raises:
            InputError: there are no pairs, or a pair is too long for the context.
            UsageError: the tokenizer has no merges to leave out, or no tags for the directions.
        """
        if batch_tokens is None and rows is None:
            raise UsageError("batches of pairs need a size", settings=["batch_tokens", "batch_size"])
        self._stored, self._batch_rows, self._layout = stored, rows, layout
        self._batch_tokens = None if batch_tokens is None else layout.sides * batch_tokens
        self._directions = directions(stored, bidirectional=config.bidirectional)
        self.tag = self._directions[0].tag
        self._framed = FramedPairs(stored, dropout=config.bpe_dropout, context=context, layout=layout)
        if context is not None:
            self._check_lengths(context)
        self._start = self._framed.frames(self._directions[0]).start  # of the one vocabulary of targets
        self._count()
        self._order = PairOrder(samples=self.samples, seed=seed)
        self._has_dropout, self._dropout_until = config.bpe_dropout > 0, config.bpe_dropout_until
        self._dropout_samples: int | None = None  # consumed when BPE dropout ends; None: it lasts for the whole run
        self._pool: tuple[tuple[int, int, bool], PairBatches] | None = None  # made last, and which it is
        first = self._batches(0, 0, dropout=self._has_dropout)
        self.steps_per_epoch = len(first) * self.samples / int(self._order.starts[1])

    @classmethod
    def open(cls, folder: Path, config: RunConfig) -> Self:
        """The pairs in a folder, in the directions and the batches of a run."""
        training, stored = config.training, open_pairs(folder)
        check_heads_given(config.model, are_given=stored.manifest.heads)
        return cls(
            stored,
            config.parallel,
            batch_tokens=training.batch_tokens,
            rows=training.batch_size if training.batch_tokens is None else None,
            seed=training.seed,
            context=config.model.position_limit,
            layout=layout_of(config.model, learns_source=training.source_loss > 0),
        )

    def batch(self, consumed: int, *, share: float = 1.0) -> Batch:
        """The pairs that follow `consumed` ones, `share` of a batch; what is left of one if these end within it."""
        epoch, pool, offset = self._order.place(consumed)
        until = self._dropout_samples
        dropout = self._has_dropout and (until is None or consumed - offset < until)
        return self._batches(epoch, pool, dropout=dropout).batch(offset, self._start, share=share)

    def plan(self, steps: int) -> None:
        """End BPE dropout with the pool in which the share of the steps is over that the settings give it."""
        if self._dropout_until < 1.0:
            self._dropout_samples = round(self._dropout_until * steps / self.steps_per_epoch * self.samples)

    def validation(self) -> Iterator[Batch]:
        """The validation split, pairs of similar length together; with both directions, one after the other."""
        numbers = np.arange(self._stored.manifest.splits["validation"].pairs)
        for direction in self._directions:
            sources, targets = self._framed.rows("validation", direction, numbers)
            batches = bucketed(sources, targets, tokens=_EVALUATION_TOKENS, rows=None, layout=self._layout.evaluated)
            yield from (batches.batch(first, self._start) for first in batches.firsts)

    def batch_size(self) -> str:
        """How much a batch is: so many tokens, or pairs."""
        if self._batch_tokens is None:
            return f"{self.batch(0).rows} pairs"
        return f"up to {self._batch_tokens:,} {self._layout.unit}"

    def epoch_size(self, parameters: int) -> tuple[float, str]:  # noqa: ARG002
        """How much there is to learn; sources are only read."""
        return self.tokens, "tokens of targets in each"

    def warnings(self, *, parameters: int, epochs: float, patience: int | None) -> list[Advice]:  # noqa: ARG002
        """Whether there are too few pairs for so large a model."""
        return too_large(self.tokens, parameters)

    def references(self, limit: int | None = None) -> list[Reference]:
        """The validation split as text: all of it, or the first `limit` sentences; both directions in turn."""
        found: list[Reference] = []
        for source, target, heads in self._stored.validation_texts():
            texts = {"source": source, "target": target}
            found += [Reference(texts[each.source], texts[each.target], each.tag, heads) for each in self._directions]
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def _check_lengths(self, context: int) -> None:
        """InputError if a pair of either split does not fit into the context."""
        if self._layout.sides == 1:
            what = "sentence"
            longest = max(split.longest for split in self._stored.manifest.splits.values()) + 1 + (self.tag is not None)
        else:
            what = "pair"
            longest = max(self._framed.longest(split, each) for split in SPLITS for each in self._directions)
        if longest > context:
            raise InputError(
                f"the longest {what} takes {longest} tokens, more than the context of {context}",
                settings=["max_length", "context_length"],
            )

    def _count(self) -> None:
        """How much there is in an epoch, and in the validation split."""
        train, validation = (self._stored.manifest.splits[split] for split in ("train", "validation"))
        targets = [direction.target for direction in self._directions]
        self.samples = train.pairs * len(targets)
        self.tokens = sum(getattr(train, f"{side}_tokens") + train.pairs for side in targets)
        self.validation_bytes = sum(getattr(validation, f"{side}_bytes") for side in targets)

    def _batches(self, epoch: int, pool: int, *, dropout: bool) -> PairBatches:
        """The batches of a pool in an epoch; the last pool is kept, as batches are asked for one after another."""
        wanted, made = (epoch, pool, dropout), self._pool
        if made is None or made[0] != wanted:
            made = self._pool = wanted, self._make(epoch, pool, dropout)
        return made[1]

    def _make(self, epoch: int, pool: int, dropout: bool) -> PairBatches:
        key, samples = self._order.key(epoch), self._order.pairs(epoch, pool)
        sources, targets = self._rows(samples, key if dropout else None)
        batches = bucketed(sources, targets, tokens=self._batch_tokens, rows=self._batch_rows, layout=self._layout)
        return batches.permuted(mix(mix(key ^ np.uint64(pool)) ^ _BATCHES))

    def _rows(self, samples: Integers, key: Indices | None) -> tuple[RaggedArray, RaggedArray]:
        """Source and target ids of samples; those of the first direction are numbered before those of the second.

        Args:
            samples: (pairs,) their numbers.
            key: of the epoch, for BPE dropout.
        """
        of_direction, pairs = np.divmod(samples, self.samples // len(self._directions))
        places, parts = [], []
        for number, direction in enumerate(self._directions):
            mine = np.flatnonzero(of_direction == number)
            keys = None if key is None else mix(key ^ samples[mine].astype(np.uint64))
            places.append(mine)
            parts.append(self._framed.rows("train", direction, pairs[mine], keys))
        back = np.argsort(np.concatenate(places), kind="stable")
        sources, targets = (RaggedArray.concatenate(side).take(back) for side in zip(*parts, strict=True))
        return sources, targets
