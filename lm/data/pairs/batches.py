"""Pairs as batches for an encoder-decoder: by number of tokens, pairs of similar length together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORED, ParallelConfig
from lm.data.batch import Batch
from lm.data.pairs.bpe_dropout import Merges, segment
from lm.data.pairs.store import Sentences, SideName, StoredPairs
from lm.data.permutation import Indices, mix, permute
from lm.data.ragged import Ragged
from lm.data.shards import SplitName
from lm.errors import InputError, UsageError
from lm.tokenizer.languages import spelled_tag
from lm.tokenizer.tokenizer import Tokenizer

Integers = NDArray[np.int64]

_POOL = 1 << 14  # pairs that are sorted by length together
_EVALUATION_TOKENS = 8192
_SOURCE, _TARGET, _BATCHES = (np.uint64(number) for number in range(3))  # what a key is for


class Text(NamedTuple):
    """A sentence to be translated, what it should become, and the token that asks for its language, if one must."""

    source: str
    target: str
    tag: int | None


@dataclass(frozen=True)
class _Direction:
    """A side to translate from, and one to translate to."""

    source: SideName
    target: SideName
    tag: int | None


@dataclass(frozen=True)
class _Plan:
    """Some pairs cut into batches.

    Attributes:
        sources: (pairs,) ids the encoder reads, in the order in which they are trained on.
        targets: (pairs,) ids to be predicted.
        ends: (batches,) where each batch ends.
    """

    sources: Ragged
    targets: Ragged
    ends: Integers

    def batch(self, first: int, start: int, *, share: float = 1.0) -> Batch:
        """The rest, from pair `first` on, of the batch that it is in, or of such a share of this batch if that is less.

        Args:
            first: number of the pair in the order in which they are trained on.
            start: the id that decoding starts from.
            share: of the pairs of the whole batch.
        """
        number = int(np.searchsorted(self.ends, first, side="right"))
        begin, end = (int(self.ends[number - 1]) if number else 0), int(self.ends[number])
        rows = np.arange(first, min(end, first + math.ceil(share * (end - begin))))
        sources, targets = self.sources.take(rows), self.targets.take(rows)
        predicted = targets.padded(IGNORED)
        inputs = np.concatenate([np.full((len(rows), 1), start), predicted[:, :-1]], axis=1)
        return Batch(
            inputs=np.where(inputs == IGNORED, 0, inputs),
            targets=predicted,
            source=sources.padded(0),
            source_lengths=sources.lengths(),
        )


class PairData:
    """Training data of pairs, in both directions if asked.

    An epoch is a permutation of the pairs, cut into pools. The pairs of a pool are sorted by length and cut into
    batches, and the batches permuted. With BPE dropout all words are segmented anew in each epoch, and the lengths that
    count are those that this gives.

    Attributes:
        samples: pairs in an epoch; with both directions each pair counts twice.
        tokens: targets in an epoch, without BPE dropout.
        steps_per_epoch: batches in an epoch: as the first pool of the first epoch has it.
        validation_bytes: UTF-8 bytes of the targets of the validation split.
    """

    def __init__(
        self,
        stored: StoredPairs,
        config: ParallelConfig,
        *,
        batch_tokens: int | None = None,
        rows: int | None = None,
        seed: int,
        context: int | None = None,
    ) -> None:
        """Batches of the pairs in a folder.

        Args:
            stored: the folder.
            config: directions and BPE dropout.
            batch_tokens: most positions of a batch on either side, padding included; one pair may have more.
            rows: most pairs of a batch.
            seed: of the order and of BPE dropout.
            context: most positions of a row. A sentence that BPE dropout makes longer is left as it is.

        Raises:
            InputError: there are no pairs, or a pair is too long for the context.
            UsageError: the tokenizer has no merges to leave out, or no tags for the directions.
        """
        if batch_tokens is None and rows is None:
            raise UsageError("batches of pairs need a size (--batch-tokens, --batch-size)")
        self._stored, self._limits, self._context = stored, (batch_tokens, rows), context
        self._dropout, self._dropout_until = config.bpe_dropout, config.bpe_dropout_until
        self._directions = _directions(stored, bidirectional=config.bidirectional)
        self.forward_tag = self._directions[0].tag
        self._key = mix(np.array([seed], dtype=np.uint64))
        splits = stored.manifest.splits
        longest = max(split.longest for split in splits.values()) + 1 + config.bidirectional
        if context is not None and longest > context:
            raise InputError(
                f"the longest sentence takes {longest} tokens, more than the context of {context} "
                "(--max-length, --context)"
            )
        self._pairs = splits["train"].pairs
        self.samples = self._pairs * len(self._directions)
        self.tokens = self.validation_bytes = 0
        for direction in self._directions:
            self.tokens += getattr(splits["train"], f"{direction.target}_tokens") + self._pairs
            self.validation_bytes += getattr(splits["validation"], f"{direction.target}_bytes")
        self._merges: dict[SideName, Merges] = {}
        if self._dropout:
            self._merges = {side: _merges(self._tokenizer(side)) for side in ("source", "target")}
        pools = max(1, round(self.samples / _POOL))
        self._pools = np.arange(pools + 1) * self.samples // pools  # where each starts
        self._sentences = cache(stored.sentences)
        self._planned: tuple[tuple[int, int, bool], _Plan] | None = None
        batches = len(self._plan(0, 0, dropout=self._dropout > 0).ends)
        self.steps_per_epoch = batches * self.samples / int(self._pools[1])
        self._dropout_samples: int | None = None  # consumed when BPE dropout ends; None: it lasts for the whole run

    def batch(self, consumed: int, *, share: float = 1.0) -> Batch:
        """The pairs that follow `consumed` ones, `share` of a batch; what is left of one if these end within it."""
        epoch, place = divmod(consumed, self.samples)
        pool = int(np.searchsorted(self._pools, place, side="right")) - 1
        first = int(self._pools[pool])
        until = self._dropout_samples
        dropout = self._dropout > 0 and (until is None or epoch * self.samples + first < until)
        plan = self._plan(epoch, pool, dropout=dropout)
        return plan.batch(place - first, self._start, share=share)

    def plan(self, steps: int) -> None:
        """End BPE dropout with the pool in which the share of the steps is over that the settings give it."""
        if self._dropout_until < 1.0:
            self._dropout_samples = round(self._dropout_until * steps / self.steps_per_epoch * self.samples)

    def validation(self) -> Iterator[Batch]:
        """The validation split, pairs of similar length together; with both directions, one after the other."""
        for direction in self._directions:
            numbers = np.arange(self._stored.manifest.splits["validation"].pairs)
            sources, targets = self._rows("validation", direction, numbers)
            plan = _cut(sources, targets, _EVALUATION_TOKENS, None)
            for first in [0, *plan.ends[:-1].tolist()] if len(plan.ends) else []:
                yield plan.batch(first, self._start)

    def validation_texts(self, limit: int | None = None) -> list[Text]:
        """The validation split as text: all of it, or the first `limit` sentences; both directions in turn."""
        texts: list[Text] = []
        for pair in self._stored.validation_texts():
            sides = dict(zip(("source", "target"), pair, strict=True))
            texts += [Text(sides[each.source], sides[each.target], each.tag) for each in self._directions]
            if limit is not None and len(texts) >= limit:
                return texts[:limit]
        return texts

    def _tokenizer(self, side: SideName) -> Tokenizer:
        return (self._stored.source_tokenizer if side == "source" else None) or self._stored.tokenizer

    @property
    def _start(self) -> int:
        start = self._stored.tokenizer.start_of_text
        assert start is not None
        return start

    def _plan(self, epoch: int, pool: int, *, dropout: bool) -> _Plan:
        wanted = (epoch, pool, dropout)
        known = self._planned
        if known is None or known[0] != wanted:
            known = self._planned = wanted, self._made(epoch, pool, dropout)
        return known[1]

    def _made(self, epoch: int, pool: int, dropout: bool) -> _Plan:
        """The batches of one pool in one epoch."""
        key = mix(self._key ^ np.uint64(epoch))
        places = np.arange(self._pools[pool], self._pools[pool + 1], dtype=np.uint64)
        samples = permute(places, self.samples, np.repeat(key, len(places))).astype(np.int64)
        order, parts = [], []
        for number, direction in enumerate(self._directions):
            mine = np.flatnonzero(samples // self._pairs == number)
            order.append(mine)
            numbers = samples[mine]
            keys = mix(key ^ numbers.astype(np.uint64)) if dropout else None
            parts.append(self._rows("train", direction, numbers % self._pairs, keys))
        back = np.argsort(np.concatenate(order), kind="stable")
        sources, targets = (Ragged.join(side).take(back) for side in zip(*parts, strict=True))
        plan = _cut(sources, targets, *self._limits)
        return _permuted(plan, key=mix(mix(key ^ np.uint64(pool)) ^ _BATCHES))

    def _rows(
        self, split: SplitName, direction: _Direction, numbers: Integers, keys: Indices | None = None
    ) -> tuple[Ragged, Ragged]:
        """Source ids (tag, sentence, end) and target ids (sentence, end) of some pairs; `keys` for BPE dropout."""
        sides = []
        for side, purpose, tag_id in ((direction.source, _SOURCE, direction.tag), (direction.target, _TARGET, None)):
            end = self._tokenizer(side).end_of_text
            assert end is not None
            before = [] if tag_id is None else [tag_id]
            words = self._sentences(split, side)
            ids = _tokens(words, numbers)
            if keys is not None:
                room = None if self._context is None else self._context - 1 - len(before)
                ids = _where_it_fits(ids, self._dropped(words, numbers, side, mix(keys ^ purpose)), room)
            sides.append(ids.framed(before, [end]))
        return sides[0], sides[1]

    def _dropped(self, sentences: Sentences, numbers: Integers, side: SideName, keys: Indices) -> Ragged:
        """Sentences segmented with BPE dropout, each word with a key made from its sentence's and its place there."""
        words, merges = sentences.words.take(numbers), self._merges[side]
        lengths = words.lengths()
        places = np.arange(len(words.values)) - np.repeat(words.ends - lengths, lengths)
        of_words = mix(np.repeat(keys, lengths) ^ places.astype(np.uint64))
        letters = merges.letters(sentences.table.take(words.values))
        return segment(letters, merges, dropout=self._dropout, keys=of_words).grouped(words.ends)


def _directions(stored: StoredPairs, *, bidirectional: bool) -> list[_Direction]:
    if not bidirectional:
        return [_Direction("source", "target", None)]
    source, target = stored.manifest.languages
    names = [spelled_tag(target or ""), spelled_tag(source or "")]
    missing = [name for name in names if name not in stored.tokenizer.special_tokens]
    if missing:
        raise UsageError(
            f"the tokenizer has no special token {missing[0]}, which asks for a direction (--bidirectional)"
        )
    forth, back = (stored.tokenizer.special_tokens[name] for name in names)
    return [_Direction("source", "target", forth), _Direction("target", "source", back)]


def _merges(tokenizer: Tokenizer) -> Merges:
    if (found := Merges.of(tokenizer)) is None:
        raise UsageError(f"BPE dropout needs a BPE tokenizer, and this one is {tokenizer.kind} (--bpe-dropout)")
    return found


def _tokens(sentences: Sentences, numbers: Integers) -> Ragged:
    """Sentences as the tokenizer encodes them."""
    words = sentences.words.take(numbers)
    return sentences.table.take(words.values).grouped(words.ends)


def _where_it_fits(plain: Ragged, dropped: Ragged, room: int | None) -> Ragged:
    """What BPE dropout made of sentences, save of those that it made too long."""
    if room is None or not (too_long := dropped.lengths() > room).any():
        return dropped
    return Ragged.join([dropped, plain]).take(np.arange(len(plain)) + len(plain) * too_long)


def _cut(sources: Ragged, targets: Ragged, tokens: int | None, rows: int | None) -> _Plan:
    """Pairs sorted by length and cut into batches, each as large as the limits allow."""
    lengths = np.stack([sources.lengths(), targets.lengths()])
    order = np.lexsort((np.where(lengths[1] % 2, lengths[0], -lengths[0]), lengths[1]))
    ends: list[int] = []
    start = longest = 0
    for place, length in enumerate(lengths.max(axis=0)[order].tolist()):
        longest = max(longest, length)
        count = place - start + 1
        if count > 1 and ((tokens and count * longest > tokens) or (rows and count > rows)):
            ends.append(place)
            start, longest = place, length
    if len(order):
        ends.append(len(order))
    return _Plan(sources.take(order), targets.take(order), np.array(ends, dtype=np.int64))


def _permuted(plan: _Plan, *, key: Indices) -> _Plan:
    """The same batches in another order."""
    batches = Ragged(np.arange(len(plan.sources)), plan.ends)
    order = batches.take(np.argsort(mix(key ^ np.arange(len(batches), dtype=np.uint64)), kind="stable"))
    return _Plan(plan.sources.take(order.values), plan.targets.take(order.values), order.ends)
