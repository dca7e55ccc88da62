"""Token IDs of stored pairs with special tokens, optionally with BPE dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.corpus.store import SPLITS, Manifest, Split, SplitName, open_tokenizers
from lm.corpus.tree_positions import attach_positions, wrap_sources
from lm.data.bpe_dropout import DropoutMerges, segment_words
from lm.data.pair_batches import EncoderDecoderLayout, PairLayout
from lm.errors import InputError, UsageError
from lm.pseudorandom import Indices, hash64
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
SideName = Literal["source", "target"]
SIDES: tuple[SideName, ...] = ("source", "target")

_ENCODER_DECODER = EncoderDecoderLayout()
_SOURCE, _TARGET = np.uint64(0), np.uint64(1)  # separate the keys of both sides


@dataclass(frozen=True)
class StoredPairs:
    """A store of sentence pairs.

    Attributes:
        tokenizer: of the targets; of the sources too, unless they have their own.
        source_tokenizer: of the sources, if separate.
    """

    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a store; InputError if it holds no pairs."""
        manifest = Manifest.read(folder)
        if manifest.kind != "pairs":
            raise InputError(f"{folder}: holds prepared {manifest.kind}, not pairs")
        return cls(folder, manifest, *open_tokenizers(folder))

    @cached_property
    def splits(self) -> dict[SplitName, Split]:
        return {name: Split(self.folder, self.manifest, name) for name in SPLITS}


@dataclass(frozen=True)
class TranslationDirection:
    """A translation direction.

    Attributes:
        tag: language tag of the target, for bidirectional models.
    """

    source: SideName
    target: SideName
    tag: LanguageTag | None = None


def translation_directions(stored: StoredPairs, *, bidirectional: bool) -> list[TranslationDirection]:
    """Return the translation directions of a model, from source to target first.

    Raises:
        UsageError: the tokenizer lacks the language tags.
    """
    if not bidirectional:
        return [TranslationDirection("source", "target")]
    source, target = (language or "" for language in stored.manifest.languages)
    tags = find_language_tags(stored.tokenizer)
    if missing := [language for language in (target, source) if language not in tags]:
        raise UsageError(
            f"the tokenizer has no special token {format_language_tag(missing[0])}, which asks for a direction"
        )
    return [
        TranslationDirection("source", "target", tags[target]),
        TranslationDirection("target", "source", tags[source]),
    ]


class FramedPairs:
    """The pairs of a folder, framed (see `lm.tokenizer.special_tokens`)."""

    def __init__(
        self,
        stored: StoredPairs,
        *,
        dropout: float = 0.0,
        context: int | None = None,
        layout: PairLayout = _ENCODER_DECODER,
    ) -> None:
        """Read the pairs of a folder.

        Args:
            dropout: BPE dropout, for rows with keys.
            context: maximum row length; sentences or pairs that BPE dropout makes longer are segmented without it.

        Raises:
            UsageError: the tokenizer has no merges.
        """
        self._dropout, self._context, self._layout = dropout, context, layout
        self._tokenizers: dict[SideName, Tokenizer] = {
            "source": stored.source_tokenizer or stored.tokenizer,
            "target": stored.tokenizer,
        }
        self._merges = {side: _require_merges(side, self._tokenizers[side]) for side in SIDES} if dropout else {}
        self._stored = stored

    def special_tokens(self, direction: TranslationDirection) -> PairSpecialTokens:
        target, source = self._tokenizers[direction.target], self._tokenizers[direction.source]
        return build_pair_frames(target, source, tag=direction.tag)

    def rows(
        self, split: SplitName, direction: TranslationDirection, numbers: Integers, keys: Indices | None = None
    ) -> tuple[RaggedArray, RaggedArray]:
        """The ids of the sources and of the targets of pairs; for sources with trees see `lm.corpus.tree_positions`.

        Args:
            numbers: (pairs,) their places in the split.
            keys: (pairs,) what their BPE dropout follows from; without keys there is none.
        """
        frames = self.special_tokens(direction)
        source_keys, target_keys = (None, None) if keys is None else (hash64(keys ^ _SOURCE), hash64(keys ^ _TARGET))
        rows = (
            self._side(split, direction.source, frames.source, numbers, source_keys),
            self._side(split, direction.target, frames.target, numbers, target_keys),
        )
        if keys is None or self._context is None or self._layout.sides == 1:
            return rows
        too_long, plain = self._layout.lengths(*rows) > self._context, self.rows(split, direction, numbers)
        return _replace_too_long(too_long, rows[0], plain[0]), _replace_too_long(too_long, rows[1], plain[1])

    def max_length(self, split: SplitName, direction: TranslationDirection) -> int:
        """Return the longest row of a split without BPE dropout, or 0."""
        numbers = np.arange(self._stored.splits[split].documents)
        return int(self._layout.lengths(*self.rows(split, direction, numbers)).max(initial=0))

    def _side(
        self, split: SplitName, side: SideName, frame: SpecialTokenFrame, numbers: Integers, keys: Indices | None
    ) -> RaggedArray:
        stored, prefix = self._stored.splits[split], "" if side == "target" else "source_"
        sentences = stored.take(numbers, "tokens" if side == "target" else "source", f"{prefix}ends")
        starts = np.flatnonzero(stored.take(numbers, f"{prefix}words", f"{prefix}ends").values)
        plain = RaggedArray(
            sentences.values, np.append(starts[1:], len(sentences.values))[: len(starts)]
        )  # tokens of each word
        words = RaggedArray(np.arange(len(starts)), np.searchsorted(starts, sentences.ends))
        word_positions = None
        if side == "source" and self._stored.manifest.has_dependency_heads:
            word_positions = stored.take(numbers, "places", "source_ends").values[starts]
        tokens = _with_tree_positions(plain, word_positions).merge_rows(words.ends)
        if keys is not None:
            dropped = _with_tree_positions(
                self._segment_with_dropout(words, plain, self._merges[side], keys), word_positions
            )
            dropped = dropped.merge_rows(words.ends)
            room = math.inf if self._context is None else self._context - len(frame)
            tokens = _replace_too_long(dropped.lengths() > room, dropped, tokens)
        return wrap_sources(tokens, frame)

    def _segment_with_dropout(
        self, words: RaggedArray, tokens: RaggedArray, merges: DropoutMerges, keys: Indices
    ) -> RaggedArray:
        """Segment words with BPE dropout; keys are derived from those of sentences and word positions."""
        word_keys = hash64(np.repeat(keys, words.lengths()) ^ words.positions().astype(np.uint64))
        return segment_words(merges.characters(tokens), merges, dropout=self._dropout, keys=word_keys)


def _require_merges(side: SideName, tokenizer: Tokenizer) -> DropoutMerges:
    if (merges := DropoutMerges.from_tokenizer(tokenizer)) is None:
        raise UsageError(f"BPE dropout leaves out merges, and the {side} tokenizer has none: leave it out")
    return merges


def _replace_too_long(too_long: NDArray[np.bool_], dropped: RaggedArray, plain: RaggedArray) -> RaggedArray:
    """Return sentences with BPE dropout, but plain ones where that is too long."""
    if not too_long.any():
        return dropped
    return RaggedArray.concatenate([dropped, plain]).take(np.arange(len(plain)) + len(plain) * too_long)


def _with_tree_positions(words: RaggedArray, positions: TreePositions | None) -> RaggedArray:
    """Return tokens of words with (words, 3) tree positions beside them, if there are any."""
    if positions is None:
        return words
    return RaggedArray(attach_positions(words.values, np.repeat(positions, words.lengths(), axis=0)), words.ends)
