"""Batches of sentence pairs: order, directions, special tokens, BPE dropout, bucketing and layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lm.config.data import IGNORE_INDEX, ParallelTextConfig
from lm.config.model import ModelConfig
from lm.corpus.ragged import RaggedArray
from lm.corpus.store import SPLITS, Manifest, Split, SplitName, open_tokenizers, read_held_out
from lm.corpus.tree_positions import attach_positions, wrap_sources
from lm.data.batch import PADDING, Batch
from lm.data.bpe_dropout import DropoutMerges, segment_words
from lm.data.bucketing import batch_ends, length_batches
from lm.data.training_data import ReferenceTranslation, TrainingData
from lm.errors import InputError, UsageError
from lm.pseudorandom import Indices, hash64, permute_indices
from lm.tokenizer.special_tokens import (
    LanguageTag,
    PairSpecialTokens,
    build_pair_frames,
    find_language_tags,
    format_language_tag,
)

Integers = NDArray[np.int64]
SideName = Literal["source", "target"]
Sides = tuple[RaggedArray, RaggedArray]
"""Sources and targets."""

_POOL_SIZE = 1 << 14
"""Pairs that are bucketed together: enough to reduce padding, few enough to prepare during training."""

_EVALUATION_TOKENS = 8192
"""Positions of a validation batch per side, including padding; the loss doesn't depend on it."""

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
        halves = np.arange(2 * len(sources)).reshape(2, -1).T.flatten()
        rows = RaggedArray.concatenate([sources.wrap_rows((), (start,)), targets]).take(halves)
        ids = rows.merge_rows(np.arange(2, 2 * len(sources) + 1, 2)).to_padded(IGNORE_INDEX)
        following, lengths = ids[:, 1:], sources.lengths()[:, None]
        positions = np.arange(following.shape[1])
        return Batch(
            inputs=np.where(following == IGNORE_INDEX, PADDING, ids[:, :-1]),
            targets=np.where(positions < lengths, IGNORE_INDEX, following),
        )


def select_layout(model: ModelConfig) -> PairLayout:
    """Return the layout of a translation model."""
    return PairLayout(model.decoder_only)


class TranslationDirection(NamedTuple):
    """A translation direction; bidirectional models have the language tag of the target."""

    source: SideName
    target: SideName
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
        self._manifest, (target, source) = Manifest.read(folder), open_tokenizers(folder)
        self._splits: dict[SplitName, Split] = {name: Split(folder, self._manifest, name) for name in SPLITS}
        self._tokenizers = {"source": source or target, "target": target}
        self._merges: dict[str, DropoutMerges] = {}
        for side, tokenizer in self._tokenizers.items() if config.bpe_dropout else ():
            if (merges := DropoutMerges.from_tokenizer(tokenizer)) is None:
                raise UsageError(f"BPE dropout leaves out merges, and the {side} tokenizer has none: leave it out")
            self._merges[side] = merges
        self.directions = self._find_directions()
        self.tag = self.directions[0].tag
        self._start = self.special_tokens(self.directions[0]).start  # of the one vocabulary of targets
        self._check_lengths()
        train, held_out = (self._manifest.splits[name] for name in SPLITS)
        names = {"target": ("tokens", "bytes"), "source": ("source_tokens", "source_bytes")}
        targets = [names[direction.target] for direction in self.directions]
        self.samples = train.documents * len(targets)
        self.tokens = sum(getattr(train, tokens) + train.documents for tokens, _ in targets)
        self.validation_bytes = sum(getattr(held_out, size) for _, size in targets)
        pools = max(1, round(self.samples / _POOL_SIZE))
        self._pool_starts = np.arange(pools + 1) * self.samples // pools
        self._key = hash64(np.array([seed], dtype=np.uint64))
        self._dropout_samples: float = math.inf  # consumed when BPE dropout ends
        self._find_pool = lru_cache(1)(self._make_pool)
        _, _, batches = self._find_pool(0, 0, config.bpe_dropout > 0)
        self.steps_per_epoch = len(batches) * self.samples / int(self._pool_starts[1])

    def batch(self, consumed: int, *, fraction: float = 1.0) -> Batch:
        """Return the pairs after `consumed` ones; the rest of the batch if they end within one."""
        epoch, index = divmod(consumed, self.samples)
        pool = int(np.searchsorted(self._pool_starts, index, side="right")) - 1
        offset = index - int(self._pool_starts[pool])
        dropout = self._config.bpe_dropout > 0 and consumed - offset < self._dropout_samples
        sources, targets, batches = self._find_pool(epoch, pool, dropout)
        number = int(np.searchsorted(batches.ends, offset, side="right"))
        whole = batches.row(number)
        first = offset - int(batches.ends[number]) + len(whole)
        pairs = whole[first : first + math.ceil(fraction * len(whole))]
        return self._layout.batch(sources.take(pairs), targets.take(pairs), start=self._start)

    def set_total_steps(self, steps: int) -> None:
        """Set the number of steps: BPE dropout ends after the configured fraction of them, at the end of a pool."""
        if self._config.bpe_dropout_until < 1.0:
            epochs = self._config.bpe_dropout_until * steps / self.steps_per_epoch
            self._dropout_samples = round(epochs * self.samples)

    def validation(self) -> Iterator[Batch]:
        """Yield the validation split, bucketed by length, one direction after the other."""
        layout = self._layout
        for direction in self.directions:
            numbers = np.arange(self._splits["validation"].documents)
            sources, targets = self.framed("validation", direction, numbers)
            sides = sources.lengths(), targets.lengths()
            for pairs in length_batches(layout.lengths(*sides), tokens=_EVALUATION_TOKENS, order=layout.order(*sides)):
                yield layout.batch(sources.take(pairs), targets.take(pairs), start=self._start)

    def references(self, limit: int | None = None) -> list[ReferenceTranslation]:
        """Return the validation split as text, or its first `limit` sentences; directions alternate."""
        references: list[ReferenceTranslation] = []
        for texts in read_held_out(self._folder):
            heads = tuple(texts["heads"]) if "heads" in texts else None
            references += [
                ReferenceTranslation(texts[direction.source], texts[direction.target], direction.tag, heads)
                for direction in self.directions
            ]
            if limit is not None and len(references) >= limit:
                break
        return references[:limit]

    def special_tokens(self, direction: TranslationDirection) -> PairSpecialTokens:
        target, source = self._tokenizers[direction.target], self._tokenizers[direction.source]
        return build_pair_frames(target, source, tag=direction.tag)

    def framed(
        self, split: SplitName, direction: TranslationDirection, numbers: Integers, keys: Indices | None = None
    ) -> Sides:
        """Return the IDs of sources and targets with special tokens; of sources with trees, also tree positions.

        Args:
            numbers: (pairs,) of the split.
            keys: (pairs,) from which BPE dropout is derived; without keys there is none.
        """
        frames = self.special_tokens(direction)
        source_keys, target_keys = (None, None) if keys is None else (hash64(keys ^ key) for key in _SIDE_KEYS)
        sources = wrap_sources(self._sentences(split, direction.source, numbers, source_keys), frames.source)
        targets = wrap_sources(self._sentences(split, direction.target, numbers, target_keys), frames.target)
        if keys is None or self._context is None:
            return sources, targets
        plain = self.framed(split, direction, numbers)
        sources, targets = (
            _replace(side.lengths() > self._context, side, other)
            for side, other in zip((sources, targets), plain, strict=True)
        )
        too_long = self._layout.lengths(sources.lengths(), targets.lengths()) > self._context
        return _replace(too_long, sources, plain[0]), _replace(too_long, targets, plain[1])

    def _sentences(self, split: SplitName, side: SideName, numbers: Integers, keys: Indices | None) -> RaggedArray:
        """Return the tokens of sentences, with tree positions beside them if there are any."""
        stored, prefix = self._splits[split], "" if side == "target" else "source_"
        sentences = stored.take(numbers, "tokens" if side == "target" else "source", f"{prefix}ends")
        starts = np.flatnonzero(stored.take(numbers, f"{prefix}words", f"{prefix}ends").values)
        tokens = RaggedArray(sentences.values, np.append(starts, len(sentences.values))[1:])  # of each word
        words = RaggedArray(np.arange(len(starts)), np.searchsorted(starts, sentences.ends))  # of each sentence
        if keys is not None:
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
        if not self._config.bidirectional:
            return [TranslationDirection("source", "target")]
        source, target = (language or "" for language in self._manifest.languages)
        tags = find_language_tags(self._tokenizers["target"])
        if missing := [language for language in (target, source) if language not in tags]:
            raise UsageError(
                f"the tokenizer has no special token {format_language_tag(missing[0])}, which asks for a direction"
            )
        return [
            TranslationDirection("source", "target", tags[target]),
            TranslationDirection("target", "source", tags[source]),
        ]

    def _check_lengths(self) -> None:
        """Raise InputError if a pair does not fit into the context."""
        longest = 0
        for split, direction in itertools.product(self._splits.values(), self.directions):
            frames, lengths = self.special_tokens(direction), {"source": split.source_lengths, "target": split.lengths}
            sides = lengths[direction.source] + len(frames.source), lengths[direction.target] + len(frames.target)
            longest = max(longest, int(self._layout.lengths(*sides).max(initial=0)))
        if self._context is not None and longest > self._context:
            noun = "pair" if self._layout.decoder_only else "sentence"
            raise InputError(f"the longest {noun} takes {longest} tokens, more than the context of {self._context}")

    def _make_pool(self, epoch: int, pool: int, dropout: bool) -> tuple[RaggedArray, RaggedArray, RaggedArray]:
        """Return the sources, the targets and the batches of a pool."""
        key, (start, stop) = hash64(self._key ^ np.uint64(epoch)), self._pool_starts[pool : pool + 2]
        indices = np.arange(start, stop, dtype=np.uint64)
        samples = permute_indices(indices, self.samples, np.repeat(key, len(indices))).astype(np.int64)
        numbers, pairs = np.divmod(samples, self.samples // len(self.directions))
        order, parts = [], []
        for number, direction in enumerate(self.directions):
            order.append(np.flatnonzero(numbers == number))
            keys = hash64(key ^ samples[order[-1]].astype(np.uint64)) if dropout else None
            parts.append(self.framed("train", direction, pairs[order[-1]], keys))
        mixed = np.argsort(np.concatenate(order), kind="stable")
        sources, targets = (RaggedArray.concatenate(side).take(mixed) for side in zip(*parts, strict=True))
        lengths = sources.lengths(), targets.lengths()
        by_length = self._layout.order(*lengths)
        ends = batch_ends(self._layout.lengths(*lengths)[by_length], tokens=self._batch_tokens, rows=self._rows)
        batch_keys = hash64(hash64(key ^ np.uint64(pool)) ^ _BATCH_ORDER_KEY) ^ np.arange(len(ends), dtype=np.uint64)
        shuffled = np.argsort(hash64(batch_keys), kind="stable")
        return sources, targets, RaggedArray(by_length, ends).take(shuffled)


def _replace(too_long: NDArray[np.bool_], rows: RaggedArray, others: RaggedArray) -> RaggedArray:
    """Return rows, but others where they are too long."""
    return RaggedArray.concatenate([rows, others]).take(np.arange(len(rows)) + len(rows) * too_long)
