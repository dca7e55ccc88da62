"""Surprisal of given translations (forced decoding): each target token given the source and earlier target tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.corpus.ragged import RaggedArray
from lm.corpus.tree_positions import TreeReader, wrap_sources
from lm.data.batch import Batch
from lm.data.bucketing import batched, length_batches
from lm.data.pair_batches import PairLayout, select_layout
from lm.errors import InputError
from lm.evaluation.batch_scoring import Nats, score_batches
from lm.evaluation.perplexity import PerplexityResult
from lm.model.transformer import DecoderOnly, EncoderDecoder
from lm.processes import ParallelMap
from lm.text.records import Record
from lm.tokenizer.offsets import RoundTripLoss, TokenOffsets
from lm.tokenizer.special_tokens import LanguageTag, build_pair_frames
from lm.tokenizer.tokenizer import Tokenizer

_PAIRS_AT_ONCE = 4096
"""Pairs sorted by length together: enough that batches have hardly any padding."""

_BATCH_TOKENS = 4096
"""Padded tokens of a batch, of the longer of source and target; larger batches are not faster."""


@dataclass(frozen=True)
class EncodedPairs:
    """Encoded sentence pairs.

    Attributes:
        sources: (pairs,) IDs, language tag and end token included; with tree positions if pairs have heads.
        targets: (pairs,) IDs, end token included.
    """

    sources: RaggedArray
    targets: RaggedArray
    start: int

    def __len__(self) -> int:
        return len(self.targets)

    def lengths(self, layout: PairLayout) -> NDArray[np.int64]:
        """Return (pairs,) positions that each takes in a layout."""
        return layout.lengths(self.sources, self.targets)

    def batch(self, rows: NDArray[np.int64], layout: PairLayout) -> Batch:
        """Collate pairs, given by index, for a model."""
        return layout.batch(self.sources.take(rows), self.targets.take(rows), start=self.start)


class PairEncoder:
    """Encodes sentence pairs with special tokens, as in training."""

    def __init__(
        self, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None, *, tag: LanguageTag | None = None
    ) -> None:
        """Use the tokenizers of a run (one if joint), and the language tag if there is one.

        Raises:
            UsageError: a tokenizer has no end token.
        """
        self._target, self._source = tokenizer, source_tokenizer or tokenizer
        self._frames = build_pair_frames(tokenizer, source_tokenizer, tag=tag)
        self._trees = TreeReader(self._source)
        self._offsets = TokenOffsets(tokenizer)

    def round_trip_loss(self, text: str) -> RoundTripLoss:
        """Return what encoding loses of a target."""
        return self._offsets.round_trip_loss(Record.of_text(text), self._target.encode_batch([text])[0])

    def encode(self, pairs: Sequence[Record]) -> EncodedPairs:
        """Encode pairs, with tree positions if they have heads."""
        sources, targets = (
            tokenizer.encode_batch(texts)
            for tokenizer, texts in (
                (self._source, [pair.source or "" for pair in pairs]),
                (self._target, [pair.text for pair in pairs]),
            )
        )
        read = [self._read(pair, ids) for pair, ids in zip(pairs, sources, strict=True)]
        target_frame = self._frames.target
        return EncodedPairs(
            wrap_sources(RaggedArray.from_rows(read), self._frames.source),
            RaggedArray.from_rows(targets).wrap_rows(target_frame.before, target_frame.after),
            self._frames.start,
        )

    def _read(self, pair: Record, ids: NDArray[Any]) -> NDArray[Any]:
        heads = pair.dependency_heads
        return ids if heads is None else self._trees.read(pair.source or "", ids, heads)


def score_pairs(
    model: DecoderOnly | EncoderDecoder,
    pairs: EncodedPairs,
    *,
    batch_tokens: int = _BATCH_TOKENS,
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
) -> list[Nats]:
    """Compute the surprisal of each target token of each pair.

    Args:
        pairs: batched by length; the result does not depend on the batches.
        batch_tokens: padded tokens of a batch, of the longer of source and target, or of both.
        parallel_map: scores batches in other processes, with `score_batch`.

    Returns:
        (target tokens,) nats in float64 for each pair.
    """
    order, layout = np.lexsort((pairs.sources.lengths(), pairs.targets.lengths())), select_layout(model.config)
    numbers = length_batches(pairs.lengths(layout), tokens=batch_tokens, order=order)
    batches = (pairs.batch(rows, layout) for rows in numbers)
    scored = [np.zeros(0)] * len(pairs)
    for rows, losses in zip(numbers, score_batches(model, batches, parallel_map), strict=True):
        for row, nats in zip(rows, losses, strict=True):
            scored[row] = nats
    return scored


@dataclass(frozen=True)
class PairScores:
    """Progress of scoring pairs.

    Attributes:
        result: totals of the targets so far; `documents` counts pairs.
        blank: pairs skipped so far because source or target is blank.
    """

    result: PerplexityResult
    blank: int


def score_pairs_streaming(
    model: DecoderOnly | EncoderDecoder,
    encoder: PairEncoder,
    pairs: Iterable[Record],
    *,
    name: str,
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None,
) -> Iterator[PairScores]:
    """Score any number of pairs in bounded memory.

    Args:
        pairs: from `ParallelText.records`.
        parallel_map: scores batches in other processes, with `score_batch`.

    Yields:
        The totals after every few thousand pairs, at least once; the last are final.

    Raises:
        InputError: the model outputs NaN, or a pair exceeds the learned positions.
    """
    result, blank = PerplexityResult(), 0
    for chunk in batched(pairs, _PAIRS_AT_ONCE):
        whole = [pair for pair in chunk if not pair.is_blank]
        blank += len(chunk) - len(whole)
        tokens = encoder.encode(whole)
        _check_lengths(model, whole, tokens, name)
        for pair, nats in zip(whole, score_pairs(model, tokens, parallel_map=parallel_map), strict=True):
            losses = [encoder.round_trip_loss(pair.text)]
            result.add_document(nats, [pair.text], losses, where=f"{name}: line {pair.line}")
        yield PairScores(result, blank)
    yield PairScores(result, blank)


def _check_lengths(
    model: DecoderOnly | EncoderDecoder, pairs: Sequence[Record], tokens: EncodedPairs, name: str
) -> None:
    """Raise InputError for the first pair that exceeds the positions of the model."""
    limit = model.config.position_limit
    if limit is None:
        return
    for pair, length in zip(pairs, tokens.lengths(select_layout(model.config)).tolist(), strict=True):
        if length > limit:
            raise InputError(
                f"{name}: line {pair.line} has {length:,} tokens, but the model's positions end at {limit:,}; "
                "leave it out"
            )
