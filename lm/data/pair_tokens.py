"""Stored pairs as model inputs, with special tokens, segmented as the tokenizer does or with BPE dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lm.corpus.manifest import SplitName
from lm.corpus.pairs import SIDES, SideName, StoredPairs
from lm.corpus.ragged import RaggedArray
from lm.corpus.tree_positions import attach_positions, wrap_sources
from lm.data.bpe_dropout import Merges, segment
from lm.data.pair_batches import PairLayout, TwoSides
from lm.errors import UsageError
from lm.pseudorandom import Indices, mix
from lm.text.dependency_trees import TreePositions
from lm.tokenizer.special_tokens import (
    LanguageTag,
    PairSpecialTokens,
    SpecialTokenFrame,
    build_pair_frames,
    find_language_tags,
    format_language_tag,
)
from lm.tokenizer.tokenizer import Tokenizer

Integers = NDArray[np.int64]

_TWO_SIDES = TwoSides()
_SOURCE, _TARGET = np.uint64(0), np.uint64(1)  # keep the keys of the two sides of a pair apart


@dataclass(frozen=True)
class Direction:
    """A way to translate the pairs of a folder.

    Attributes:
        source: the side to translate from.
        target: the side to translate to.
        tag: asks for the language of the target, where pairs are translated in both directions.
    """

    source: SideName
    target: SideName
    tag: LanguageTag | None = None


def directions(stored: StoredPairs, *, bidirectional: bool) -> list[Direction]:
    """The directions in which a model learns to translate; from source to target first.

    Raises:
        UsageError: the tokenizer has no tags for both directions.
    """
    if not bidirectional:
        return [Direction("source", "target")]
    source, target = (language or "" for language in stored.manifest.languages)
    tags = find_language_tags(stored.tokenizer)
    if missing := [language for language in (target, source) if language not in tags]:
        raise UsageError(
            f"the tokenizer has no special token {format_language_tag(missing[0])}, which asks for a direction",
            settings=["bidirectional"],
        )
    return [Direction("source", "target", tags[target]), Direction("target", "source", tags[source])]


class FramedPairs:
    """The pairs of a folder, framed (see `lm.tokenizer.special_tokens`)."""

    def __init__(
        self,
        stored: StoredPairs,
        *,
        dropout: float = 0.0,
        context: int | None = None,
        layout: PairLayout = _TWO_SIDES,
    ) -> None:
        """Read the pairs of a folder.

        Args:
            stored: the folder.
            dropout: of BPE, for the rows that are asked for with keys.
            context: most positions of a row. What BPE dropout makes longer is left as it is: a sentence, or in one
                sequence a pair.
            layout: of the rows.

        Raises:
            UsageError: the tokenizer has no merges to leave out.
        """
        self._dropout, self._context, self._layout = dropout, context, layout
        self._tokenizers: dict[SideName, Tokenizer] = {
            "source": stored.source_tokenizer or stored.tokenizer,
            "target": stored.tokenizer,
        }
        self._merges = {side: _merges(side, self._tokenizers[side]) for side in SIDES} if dropout else {}
        self._sentences, self._places = cache(stored.sentences), cache(stored.tree_positions)

    def frames(self, direction: Direction) -> PairSpecialTokens:
        """The tokens around sources and targets."""
        target, source = self._tokenizers[direction.target], self._tokenizers[direction.source]
        return build_pair_frames(target, source, tag=direction.tag)

    def rows(
        self, split: SplitName, direction: Direction, numbers: Integers, keys: Indices | None = None
    ) -> tuple[RaggedArray, RaggedArray]:
        """The ids of the sources and of the targets of pairs; for sources with trees see `lm.corpus.tree_positions`.

        Args:
            split: that they are in.
            direction: in which they are translated.
            numbers: (pairs,) their places in the split.
            keys: (pairs,) what their BPE dropout follows from; without keys there is none.
        """
        frames = self.frames(direction)
        of_source, of_target = (None, None) if keys is None else (mix(keys ^ _SOURCE), mix(keys ^ _TARGET))
        rows = (
            self._side(split, direction.source, frames.source, numbers, of_source),
            self._side(split, direction.target, frames.target, numbers, of_target),
        )
        if keys is None or self._context is None or self._layout.sides == 1:
            return rows
        too_long, plain = self._layout.lengths(*rows) > self._context, self.rows(split, direction, numbers)
        return _unless(too_long, rows[0], plain[0]), _unless(too_long, rows[1], plain[1])

    def longest(self, split: SplitName, direction: Direction) -> int:
        """The most positions of a row that a pair of a split takes, without BPE dropout; 0 where there is none."""
        numbers = np.arange(len(self._sentences(split, direction.source)))
        return int(self._layout.lengths(*self.rows(split, direction, numbers)).max(initial=0))

    def _side(
        self, split: SplitName, side: SideName, frame: SpecialTokenFrame, numbers: Integers, keys: Indices | None
    ) -> RaggedArray:
        sentences = self._sentences(split, side)
        words = sentences.words.take(numbers)
        plain = sentences.table.take(words.values)  # of each word
        places = self._places(split) if side == "source" else None
        of_words = None if places is None else places.take(numbers).values[plain.ends - plain.lengths()]
        tokens = _beside_places(plain, of_words).merge_rows(words.ends)
        if keys is not None:
            dropped = _beside_places(self._dropped(words, plain, self._merges[side], keys), of_words)
            dropped = dropped.merge_rows(words.ends)
            room = math.inf if self._context is None else self._context - len(frame)
            tokens = _unless(dropped.lengths() > room, dropped, tokens)
        return wrap_sources(tokens, frame)

    def _dropped(self, words: RaggedArray, tokens: RaggedArray, merges: Merges, keys: Indices) -> RaggedArray:
        """The words segmented with BPE dropout, each with a key made from its sentence's and its place there."""
        lengths = words.lengths()
        places = np.arange(len(words.values)) - np.repeat(words.ends - lengths, lengths)
        of_words = mix(np.repeat(keys, lengths) ^ places.astype(np.uint64))
        return segment(merges.letters(tokens), merges, dropout=self._dropout, keys=of_words)


def _merges(side: SideName, tokenizer: Tokenizer) -> Merges:
    if (found := Merges.of(tokenizer)) is None:
        raise UsageError(
            f"BPE dropout leaves out merges, and the {side} tokenizer has none: leave it out",
            settings=["bpe_dropout"],
        )
    return found


def _unless(too_long: NDArray[np.bool_], dropped: RaggedArray, plain: RaggedArray) -> RaggedArray:
    """The sentences with BPE dropout, but plain where they would be too long."""
    if not too_long.any():
        return dropped
    return RaggedArray.concatenate([dropped, plain]).take(np.arange(len(plain)) + len(plain) * too_long)


def _beside_places(words: RaggedArray, places: TreePositions | None) -> RaggedArray:
    """The tokens of words, however they are segmented, beside (words, 3) places in trees if there are some."""
    if places is None:
        return words
    return RaggedArray(attach_positions(words.values, np.repeat(places, words.lengths(), axis=0)), words.ends)
