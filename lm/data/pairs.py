"""Batches of sentence pairs: order, directions, special tokens, BPE dropout, bucketing and layout.

BPE dropout skips merges at random, so that a model sees words in many segmentations (Provilkov et al. 2020, algorithm
1). The generator of `tokenizers` cannot be seeded; here a segmentation is a pure function of a key, so that training is
reproducible and resumable. Many words are merged at once with array operations.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.config.run_config import IGNORE_INDEX, ParallelTextConfig
from lm.corpus import SPLITS, Indices, Manifest, RaggedArray, Split, SplitName, hash64, open_tokenizers, read_held_out
from lm.corpus.encode import attach_positions, wrap_sources
from lm.data import PADDING, Batch, ReferenceTranslation, TrainingData, length_batches, permute_indices
from lm.errors import InputError, UsageError
from lm.tokenizer import MergeRules
from lm.tokenizer.chat_template import (
    LanguageTag,
    PairSpecialTokens,
    build_pair_frames,
    find_language_tags,
    format_language_tag,
)

Integers = NDArray[np.int64]
SideName = Literal["source", "target"]

_POOL_SIZE = 1 << 14
"""Pairs that are bucketed together: enough to reduce padding, few enough to prepare during training."""

_EVALUATION_TOKENS = 8192
"""Positions of a validation batch per side, including padding; the loss doesn't depend on it."""

_PREFIXES = {"target": "", "source": "source_"}  # of the columns and counts of a side in the store
_NO_RULE = np.iinfo(np.int64).max
"""Rank of a pair without a merge rule."""

_BATCH_CHARACTERS = 1 << 16  # characters per batch, including padding: few enough for words of similar length
_STEP = np.uint64(0x9E3779B97F4A7C15)
_BATCH_ORDER_KEY = np.uint64(2)  # distinguishes the keys of batch permutations
_SIDE_KEYS = np.uint64(0), np.uint64(1)  # of sources and targets


@dataclass(frozen=True)
class PairLayout:
    """How pairs become the rows of a model.

    Attributes:
        decoder_only: source, start token and target are one sequence; otherwise both sides have a stack of their own.

    Source: Liu et al. 2018, section 4.2.3.
    """

    decoder_only: bool = False

    def lengths(self, sources: Integers, targets: Integers) -> Integers:
        """Return (pairs,) row lengths, given those of both sides: the longer one, or the sum.

        In a sequence the start token counts, and the last token isn't read.
        """
        return sources + targets if self.decoder_only else np.maximum(sources, targets)

    def order(self, sources: Integers, targets: Integers) -> Integers:
        """Return (pairs,) indices with similar lengths together, given those of both sides.

        With two stacks sorted by target length; source lengths alternately ascend and descend within equal target
        lengths, so that neighbours are similar on both sides.
        """
        if self.decoder_only:
            return np.argsort(sources + targets, kind="stable")
        return np.lexsort((np.where(targets % 2, sources, -sources), targets))

    def batch(self, sources: RaggedArray, targets: RaggedArray, *, start: int) -> Batch:
        """Return pairs as a batch, with teacher forcing.

        Args:
            sources: (pairs,) IDs; for an encoder, maybe with dependency trees.
            targets: (pairs,) IDs to predict, including the end token.
            start: first ID that the decoder reads, or ID between source and target.
        """
        if not self.decoder_only:
            padded = targets.to_padded(IGNORE_INDEX)
            inputs = np.concatenate([np.full((len(targets), 1), start), padded[:, :-1]], axis=1)
            inputs = np.where(inputs == IGNORE_INDEX, PADDING, inputs)
            return Batch(inputs, padded, sources.to_padded(PADDING), sources.lengths())
        ids = RaggedArray.join_rows([sources.wrap_rows((), (start,)), targets]).to_padded(IGNORE_INDEX)
        following, lengths = ids[:, 1:], sources.lengths()[:, None]
        positions = np.arange(following.shape[1])
        return Batch(
            inputs=np.where(following == IGNORE_INDEX, PADDING, ids[:, :-1]),
            targets=np.where(positions < lengths, IGNORE_INDEX, following),
        )


class TranslationDirection(NamedTuple):
    """A translation direction; bidirectional models have the language tag of the target."""

    source: SideName
    target: SideName
    frames: PairSpecialTokens
    tag: LanguageTag | None = None


class Pairs(TrainingData):
    """Sentence pairs, optionally in both directions.

    An epoch is a permutation, divided into pools of equal size. The pairs of a pool are bucketed into batches, which
    are permuted. With BPE dropout words are segmented again in each epoch, before bucketing.

    Attributes:
        samples: pairs per epoch; twice the number of pairs with both directions.
        tokens: target tokens per epoch, without BPE dropout.
        steps_per_epoch: estimated from the first pool.
        tag: of the first direction.
    """

    holds_pairs = True

    def __init__(
        self,
        folder: Path,
        config: ParallelTextConfig,
        *,
        batch_tokens: int | None = None,
        rows: int | None = None,
        seed: int,
        context: int | None = None,
        layout: PairLayout | None = None,
    ) -> None:
        """Create batches of the pairs in a folder.

        Args:
            batch_tokens: maximum positions of a batch per side, including padding; a single pair may exceed it.
            rows: maximum pairs of a batch.
            context: maximum row length; what BPE dropout makes longer is segmented without it.
            layout: [default: of an encoder-decoder].

        Raises:
            InputError: there are no pairs, or a pair is too long for the context.
            UsageError: the tokenizer has no merges, or no language tags.
        """
        self._folder, self._config, self._context, self._rows = folder, config, context, rows
        self._layout = layout or PairLayout()
        self._batch_tokens = batch_tokens and batch_tokens * (1 + self._layout.decoder_only)
        self._manifest = Manifest.read(folder)
        own, others = open_tokenizers(folder, self._manifest)
        self._splits: dict[SplitName, Split] = {name: Split(folder, self._manifest, name) for name in SPLITS}
        self._tokenizers = {"source": others or own, "target": own}
        self._merges = {
            side: DropoutMerges(rules)
            for side, tokenizer in self._tokenizers.items()
            if config.bpe_dropout and (rules := tokenizer.merge_rules)
        }
        self.directions = self._find_directions()
        self.tag = self.directions[0].tag
        self._start = self.directions[0].frames.start  # of the one vocabulary of targets
        longest = 0
        for split, (source, target, frames, _) in itertools.product(self._splits.values(), self.directions):
            sources = split.row_lengths(f"{_PREFIXES[source]}ends") + len(frames.source)
            targets = split.row_lengths(f"{_PREFIXES[target]}ends") + len(frames.target)
            longest = max(longest, int(self._layout.lengths(sources, targets).max(initial=0)))
        if context is not None and longest > context:
            raise InputError(f"the longest pair takes {longest} tokens, more than the context of {context}")
        train, held_out = (self._manifest.splits[name] for name in SPLITS)
        prefixes = [_PREFIXES[direction.target] for direction in self.directions]
        self.samples = train.documents * len(prefixes)
        self.tokens = sum(getattr(train, f"{prefix}tokens") + train.documents for prefix in prefixes)
        self.validation_bytes = sum(getattr(held_out, f"{prefix}bytes") for prefix in prefixes)
        pools = max(1, round(self.samples / _POOL_SIZE))
        self._pool_starts = np.arange(pools + 1) * self.samples // pools
        self._key = hash64(np.array([seed], dtype=np.uint64))
        self._dropout_samples: float = math.inf  # consumed when BPE dropout ends
        self._find_pool = lru_cache(1)(self._make_pool)
        _, _, batches = self._find_pool(0, 0, config.bpe_dropout > 0)
        self.steps_per_epoch = len(batches) * self.samples / int(self._pool_starts[1])

    def batch(self, consumed: int) -> Batch:
        """Return the pairs after `consumed` ones; the rest of the batch if they end within one."""
        epoch, index = divmod(consumed, self.samples)
        pool = int(np.searchsorted(self._pool_starts, index, side="right")) - 1
        offset = index - int(self._pool_starts[pool])
        dropout = self._config.bpe_dropout > 0 and consumed - offset < self._dropout_samples
        sources, targets, batches = self._find_pool(epoch, pool, dropout)
        number = int(np.searchsorted(batches.ends, offset, side="right"))
        whole = batches.row(number)
        pairs = whole[offset - int(batches.ends[number]) + len(whole) :]
        return self._layout.batch(sources.take(pairs), targets.take(pairs), start=self._start)

    def set_total_steps(self, steps: int) -> None:
        """Set the number of steps: BPE dropout ends after the configured fraction of them, at the end of a pool."""
        if self._config.bpe_dropout_until < 1.0:
            epochs = self._config.bpe_dropout_until * steps / self.steps_per_epoch
            self._dropout_samples = round(epochs * self.samples)

    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, one direction after the other, in shuffled buckets of similar length."""
        layout = self._layout
        for direction in self.directions:
            numbers = np.arange(self._splits["validation"].documents)
            sources, targets = self.framed("validation", direction, numbers)
            sides = sources.lengths(), targets.lengths()
            batches = length_batches(layout.lengths(*sides), tokens=_EVALUATION_TOKENS, order=layout.order(*sides))
            random.Random(0).shuffle(batches)
            for pairs in batches:
                yield layout.batch(sources.take(pairs), targets.take(pairs), start=self._start)

    def references(self, limit: int | None = None) -> list[ReferenceTranslation]:
        """Return the validation split as text, or its first `limit` sentences; directions alternate."""
        references = (
            ReferenceTranslation(texts[source], texts[target], tag, tuple(texts["heads"]) if "heads" in texts else None)
            for texts in read_held_out(self._folder)
            for source, target, _, tag in self.directions
        )
        return [*itertools.islice(references, limit)]

    def framed(
        self, split: SplitName, direction: TranslationDirection, numbers: Integers, keys: Indices | None = None
    ) -> tuple[RaggedArray, RaggedArray]:
        """Return the IDs of sources and targets with special tokens; of sources with trees, also tree positions.

        Args:
            numbers: (pairs,) of the split.
            keys: (pairs,) from which BPE dropout is derived; without keys there is none.
        """
        frames = direction.frames
        source_keys, target_keys = (None, None) if keys is None else (hash64(keys ^ key) for key in _SIDE_KEYS)
        sources = wrap_sources(self._sentences(split, direction.source, numbers, source_keys), frames.source)
        targets = wrap_sources(self._sentences(split, direction.target, numbers, target_keys), frames.target)
        if keys is None or self._context is None:
            return sources, targets
        too_long = self._layout.lengths(sources.lengths(), targets.lengths()) > self._context
        rows, plain = np.arange(len(numbers)) + len(numbers) * too_long, self.framed(split, direction, numbers)
        sources, targets = (
            RaggedArray.concatenate(both).take(rows) for both in zip((sources, targets), plain, strict=True)
        )
        return sources, targets

    def _sentences(self, split: SplitName, side: SideName, numbers: Integers, keys: Indices | None) -> RaggedArray:
        """Return the tokens of sentences, with tree positions beside them if there are any."""
        stored, prefix = self._splits[split], _PREFIXES[side]
        sentences = stored.take(numbers, f"{prefix}tokens", f"{prefix}ends")
        starts = np.flatnonzero(stored.take(numbers, f"{prefix}words", f"{prefix}ends").values)
        tokens = RaggedArray(sentences.values, np.append(starts, len(sentences.values))[1:])  # of each word
        words = RaggedArray(np.arange(len(starts)), np.searchsorted(starts, sentences.ends))  # of each sentence
        if keys is not None and side in self._merges:
            merges, dropout = self._merges[side], self._config.bpe_dropout
            word_keys = hash64(np.repeat(keys, words.lengths()) ^ words.positions().astype(np.uint64))
            tokens = segment_words(merges.characters(tokens), merges, dropout=dropout, keys=word_keys)
        if side == "source" and self._manifest.has_dependency_heads:
            places = stored.take(numbers, "places", "source_ends").values[starts]
            placed = attach_positions(tokens.values, np.repeat(places, tokens.lengths(), axis=0))
            tokens = RaggedArray(placed, tokens.ends)
        return tokens.merge_rows(words.ends)

    def _find_directions(self) -> list[TranslationDirection]:
        """Return the translation directions, from source to target first."""
        sides: list[tuple[SideName, SideName]] = [("source", "target"), ("target", "source")]
        tags = find_language_tags(self._tokenizers["target"]) if self._config.bidirectional else {}
        directions = []
        for (source, target), language in zip(sides, self._manifest.languages[::-1], strict=True):
            if self._config.bidirectional and language not in tags:
                missing = format_language_tag(str(language))
                raise UsageError(f"the tokenizer has no special token {missing}, which asks for a direction")
            tag = tags.get(language or "")
            frames = build_pair_frames(self._tokenizers[target], self._tokenizers[source], tag=tag)
            directions.append(TranslationDirection(source, target, frames, tag))
        return directions if tags else directions[:1]

    def _make_pool(self, epoch: int, pool: int, dropout: bool) -> tuple[RaggedArray, RaggedArray, RaggedArray]:
        """Return the sources, the targets and the batches of a pool."""
        key, (start, stop) = hash64(self._key ^ np.uint64(epoch)), self._pool_starts[pool : pool + 2]
        indices = np.arange(start, stop, dtype=np.uint64)
        samples = permute_indices(indices, self.samples, np.repeat(key, len(indices))).astype(np.int64)
        numbers, pairs = np.divmod(samples, self.samples // len(self.directions))
        places, parts = [], []
        for number, direction in enumerate(self.directions):
            places.append(np.flatnonzero(numbers == number))
            keys = hash64(key ^ samples[places[-1]].astype(np.uint64)) if dropout else None
            parts.append(self.framed("train", direction, pairs[places[-1]], keys))
        mixed = np.argsort(np.concatenate(places), kind="stable")
        sources, targets = (RaggedArray.concatenate(side).take(mixed) for side in zip(*parts, strict=True))
        lengths = sources.lengths(), targets.lengths()
        rows, order = self._layout.lengths(*lengths), self._layout.order(*lengths)
        batches = length_batches(rows, tokens=self._batch_tokens, rows=self._rows, order=order)
        batch_keys = hash64(hash64(key ^ np.uint64(pool)) ^ _BATCH_ORDER_KEY) ^ np.arange(len(batches), dtype=np.uint64)
        shuffled = np.argsort(hash64(batch_keys), kind="stable").tolist()
        return sources, targets, RaggedArray.from_rows([batches[number] for number in shuffled])


class DropoutMerges:
    """Merge rules of a BPE vocabulary, and the characters that its tokens are merged from.

    A token that cannot be spelled with single-character tokens, such as an added token, is not split.
    """

    def __init__(self, merge_rules: MergeRules) -> None:
        vocabulary, rules = merge_rules.vocabulary, merge_rules.rules
        keys = np.array([(vocabulary[left] << 32) | vocabulary[right] for left, right in rules], dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        self._keys, self._ranks = np.append(keys[order], -1), np.append(order, _NO_RULE)
        self.results = np.array([vocabulary[left + right] for left, right in rules], dtype=np.int64)
        spelled = [[index] for index in range(max([-1, *vocabulary.values(), *merge_rules.whole]) + 1)]
        for token, index in vocabulary.items():
            characters = [vocabulary.get(character, -1) for character in token]
            if index not in merge_rules.whole and -1 not in characters:
                spelled[index] = characters
        self._characters = RaggedArray.from_rows(spelled)

    def characters(self, words: RaggedArray) -> RaggedArray:
        """Return the characters of words that are given as tokens."""
        return self._characters.take(words.values).merge_rows(words.ends)

    def ranks(self, left: Integers, right: Integers) -> Integers:
        """Return the rank of the rule that merges each pair of tokens, or the largest integer without one."""
        keys = (left << 32) | right
        indices = np.searchsorted(self._keys[:-1], keys)
        return np.where(self._keys[indices] == keys, self._ranks[indices], _NO_RULE)


def segment_words(words: RaggedArray, merges: DropoutMerges, *, dropout: float, keys: Indices) -> RaggedArray:
    """Merge the characters of words, skipping merges at random.

    In each step every possible merge is skipped with probability `dropout`; of the others, the one of lowest rank is
    applied, the leftmost on ties.

    Args:
        words: characters of each word, at least one.
        dropout: 0 gives plain BPE, 1 the characters.
        keys: (words,) the segmentation is a function of characters and key.

    Returns:
        The tokens.
    """
    batches = length_batches(words.lengths(), tokens=_BATCH_CHARACTERS)
    done = [_merge_words(words.take(rows), merges, dropout, keys[rows]) for rows in batches]
    order = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    return RaggedArray.concatenate(done).take(np.argsort(order, kind="stable"))


def _merge_words(words: RaggedArray, merges: DropoutMerges, dropout: float, keys: Indices) -> RaggedArray:
    """Merge words as linked lists in rows of arrays, with an empty column on both sides."""
    lengths = words.lengths()
    columns = np.arange(int(lengths.max()) + 2)
    tokens = np.full((len(lengths), len(columns)), -1, dtype=np.int64)
    tokens[(columns > 0) & (columns <= lengths[:, None])] = words.values
    following, preceding = (np.tile(columns + step, (len(lengths), 1)) for step in (1, -1))
    ranks = np.full(tokens.shape, _NO_RULE)
    ranks[:, :-1] = merges.ranks(tokens[:, :-1], tokens[:, 1:])
    candidates = ranks.copy()  # not skipped in this step
    rows, draw = np.arange(len(keys)), np.uint64(0)
    while len(rows):
        left = candidates[rows].argmin(axis=1)
        unfinished = candidates[rows, left] < _NO_RULE
        rows, left = rows[unfinished], left[unfinished]
        with np.errstate(over="ignore"):
            draw += _STEP
        skipped = (hash64(keys[rows] ^ draw) >> np.uint64(11)) < dropout * 2.0**53
        candidates[rows[skipped], left[skipped]] = _NO_RULE
        merged, left = rows[~skipped], left[~skipped]
        right = following[merged, left]
        after, before = following[merged, right], preceding[merged, left]
        tokens[merged, left], tokens[merged, right] = merges.results[ranks[merged, left]], -1
        following[merged, left], preceding[merged, after] = after, left
        ranks[merged, right] = _NO_RULE
        for first, second in ((before, left), (left, after)):
            ranks[merged, first] = merges.ranks(tokens[merged, first], tokens[merged, second])
        candidates[merged] = ranks[merged]
    kept = tokens >= 0
    return RaggedArray(tokens[kept], np.cumsum(kept.sum(axis=1)))
