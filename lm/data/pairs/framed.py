"""Stored pairs as the ids that a model reads: each side within its frame, segmented as the tokenizer does or anew."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lm.data.manifest import SplitName
from lm.data.pairs.bpe_dropout import Merges, segment
from lm.data.pairs.store import SIDES, SideName, StoredPairs
from lm.data.permutation import Indices, mix
from lm.data.ragged import Ragged
from lm.data.trees import beside, framed
from lm.errors import UsageError
from lm.text.trees import Places
from lm.tokenizer.framing import Frame, PairFrames, pair_frames
from lm.tokenizer.languages import LanguageTag, language_tags, spelled_tag
from lm.tokenizer.tokenizer import Tokenizer

Integers = NDArray[np.int64]

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
    tags = language_tags(stored.tokenizer)
    if missing := [language for language in (target, source) if language not in tags]:
        raise UsageError(
            f"the tokenizer has no special token {spelled_tag(missing[0])}, which asks for a direction "
            "(--bidirectional)"
        )
    return [Direction("source", "target", tags[target]), Direction("target", "source", tags[source])]


class FramedPairs:
    """The pairs of a folder, framed (see `lm.tokenizer.framing`)."""

    def __init__(self, stored: StoredPairs, *, dropout: float = 0.0, context: int | None = None) -> None:
        """Read the pairs of a folder.

        Args:
            stored: the folder.
            dropout: of BPE, for the rows that are asked for with keys.
            context: most positions of a row. A sentence that BPE dropout makes longer is left as it is.

        Raises:
            UsageError: the tokenizer has no merges to leave out.
        """
        self._dropout, self._context = dropout, context
        self._tokenizers: dict[SideName, Tokenizer] = {
            "source": stored.source_tokenizer or stored.tokenizer,
            "target": stored.tokenizer,
        }
        self._merges = {side: _merges(self._tokenizers[side]) for side in SIDES} if dropout else {}
        self._sentences, self._places = cache(stored.sentences), cache(stored.places)

    def frames(self, direction: Direction) -> PairFrames:
        """The tokens around sources and targets."""
        target, source = self._tokenizers[direction.target], self._tokenizers[direction.source]
        return pair_frames(target, source, tag=direction.tag)

    def rows(
        self, split: SplitName, direction: Direction, numbers: Integers, keys: Indices | None = None
    ) -> tuple[Ragged, Ragged]:
        """The ids of the sources and of the targets of some pairs; with trees, sources as `lm.data.trees` has them.

        Args:
            split: that they are in.
            direction: in which they are translated.
            numbers: (pairs,) their places in the split.
            keys: (pairs,) what their BPE dropout follows from; without keys there is none.
        """
        frames = self.frames(direction)
        of_source, of_target = (None, None) if keys is None else (mix(keys ^ _SOURCE), mix(keys ^ _TARGET))
        return (
            self._side(split, direction.source, frames.source, numbers, of_source),
            self._side(split, direction.target, frames.target, numbers, of_target),
        )

    def _side(self, split: SplitName, side: SideName, frame: Frame, numbers: Integers, keys: Indices | None) -> Ragged:
        sentences = self._sentences(split, side)
        words = sentences.words.take(numbers)
        plain = tokens = sentences.table.take(words.values)  # of each word
        if keys is not None:
            dropped = self._dropped(words, plain, self._merges[side], keys)
            room = None if self._context is None else self._context - len(frame)
            tokens = _where_it_fits(plain, dropped, words, room)
        if side == "source" and (places := self._places(split)) is not None:
            tokens = _beside_places(tokens, plain, places.take(numbers).values)
        return framed(tokens.grouped(words.ends), frame)

    def _dropped(self, words: Ragged, tokens: Ragged, merges: Merges, keys: Indices) -> Ragged:
        """The words segmented with BPE dropout, each with a key made from its sentence's and its place there."""
        lengths = words.lengths()
        places = np.arange(len(words.values)) - np.repeat(words.ends - lengths, lengths)
        of_words = mix(np.repeat(keys, lengths) ^ places.astype(np.uint64))
        return segment(merges.letters(tokens), merges, dropout=self._dropout, keys=of_words)


def _merges(tokenizer: Tokenizer) -> Merges:
    if (found := Merges.of(tokenizer)) is None:
        raise UsageError(f"BPE dropout needs a BPE tokenizer, and this one is {tokenizer.kind} (--bpe-dropout)")
    return found


def _where_it_fits(plain: Ragged, dropped: Ragged, words: Ragged, room: int | None) -> Ragged:
    """The tokens of words with BPE dropout, but plain where a sentence would have more than there is room for."""
    if room is None or not (too_long := dropped.grouped(words.ends).lengths() > room).any():
        return dropped
    of_words = np.repeat(too_long, words.lengths())
    return Ragged.join([dropped, plain]).take(np.arange(len(plain)) + len(plain) * of_words)


def _beside_places(tokens: Ragged, plain: Ragged, places: Places) -> Ragged:
    """The tokens of words beside the place of each word, which is that of the first of its plain tokens.

    Args:
        tokens: of each word, as it is segmented now.
        plain: of each word, as the tokenizer segments it.
        places: (plain tokens, 3).
    """
    of_words = places[plain.ends - plain.lengths()]
    return Ragged(beside(tokens.values, np.repeat(of_words, tokens.lengths(), axis=0)), tokens.ends)
