"""Perplexity of files: totals over tokens, and the metrics computed from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from lm.errors import nan_logits_error
from lm.evaluation.batch_scoring import Nats
from lm.evaluation.file_scoring import FileWindows, ScoredSegment, W, WindowBatcher, WindowScorer
from lm.processes import ParallelMap
from lm.text.text_file import TextFile
from lm.tokenizer.offsets import RoundTripLoss
from lm.tokenizer.tokenizer import Tokenizer


class Totals:
    """A dataclass whose fields are totals, starting at zero."""

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """Add up several parts, such as files."""
        total = cls()
        for part in parts:
            for name, value in vars(part).items():
                setattr(total, name, getattr(total, name) + value)
        return total


@dataclass
class PerplexityResult(Totals):
    """Totals over scored text, and the metrics computed from them.

    The metrics of several files are those of their summed totals (micro-average): each token has the same weight.

    Attributes:
        unscored: first tokens of documents, if there is no start token to predict them from, and skipped tokens, if
            only every Nth is scored.
        words: whitespace-separated words of their text.
        bytes: UTF-8 bytes of the scored tokens.
        nats: surprisal of the scored tokens.
        squares: sum of squared surprisals.
        unknown_tokens: tokens for text that the vocabulary cannot represent.
        lost_bytes: bytes that encoding and decoding loses. They have no surprisal, so results per word and per byte are
            not comparable with those of another tokenizer.
    """

    tokens: int = 0
    unscored: int = 0
    documents: int = 0
    words: int = 0
    bytes: int = 0
    nats: float = 0.0
    squares: float = 0.0
    unknown_tokens: int = 0
    lost_bytes: int = 0

    def __repr__(self) -> str:
        if not self.tokens:
            return "<PerplexityResult of no tokens>"
        bits = "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits/byte"
        size = f"{self.tokens:,} tokens, {self.bytes:,} bytes"
        perplexity = "beyond the greatest float" if self.perplexity is None else f"{self.perplexity:.4g}"
        return f"<PerplexityResult: perplexity {perplexity}{bits}, {size}>"

    @property
    def loses_text(self) -> bool:
        """Return whether the tokenizer loses some of the text."""
        return bool(self.unknown_tokens or self.lost_bytes)

    def add(self, nats: Nats) -> None:
        self.tokens += len(nats)
        self.nats += float(nats.sum())
        self.squares += float(np.square(nats).sum())

    def add_round_trip_loss(self, loss: RoundTripLoss) -> None:
        """Count what encoding loses of some text."""
        self.unknown_tokens += loss.unknown
        self.lost_bytes += loss.bytes

    def add_document(self, nats: Nats, texts: Sequence[str], losses: Iterable[RoundTripLoss], *, where: str) -> None:
        """Count a document of some texts, and what encoding loses of them.

        Raises:
            InputError: a surprisal is not a number; the message begins with `where`.
        """
        if not np.isfinite(nats).all():
            raise nan_logits_error(where)
        self.add(nats)
        self.documents += 1
        self.words += sum(len(text.split()) for text in texts)
        self.bytes += sum(len(text.encode()) for text in texts)
        for loss in losses:
            self.add_round_trip_loss(loss)

    def add_segment(self, segment: ScoredSegment) -> None:
        """Count the tokens of a segment and, with the first segment of a piece, the piece's text."""
        piece, scored = segment.piece, ~np.isnan(segment.nats)
        self.add(segment.nats[scored])
        if segment.first == 0:
            self.documents += piece.record.starts
            self.words += piece.words
            self.bytes += len(piece.data)
            self.add_round_trip_loss(piece.round_trip_loss)
        if not scored.all():
            self.unscored += int((~scored).sum())
            self.bytes -= int(np.diff(segment.ends, prepend=segment.start)[~scored].sum())

    @property
    def perplexity(self) -> float | None:
        """Return exp(nats / tokens); None without tokens."""
        return _exp_ratio(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Return exp(nats / words), comparable across tokenizers; None without words, or on overflow.

        Also None if tokens other than first ones are unscored, since words cannot be counted in parts.
        """
        return _exp_ratio(self.nats, self.words) if self.tokens and self.unscored <= self.documents else None

    @property
    def bits_per_byte(self) -> float | None:
        """Return bits of surprisal per UTF-8 byte, comparable across tokenizers; None without bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None

    @property
    def standard_error(self) -> float | None:
        """Return the standard error of the mean nats per token, s / √tokens; None below two tokens.

        It assumes independent tokens, so it is too small for running text; perplexity · standard_error approximates the
        standard error of the perplexity.
        """
        if self.tokens < 2:
            return None
        variance = (self.squares - self.nats**2 / self.tokens) / (self.tokens - 1)
        return math.sqrt(max(0.0, variance) / self.tokens)


def _exp_ratio(nats: float, count: int) -> float | None:
    try:
        return math.exp(nats / count) if count else None
    except OverflowError:
        return None


@dataclass(frozen=True)
class MacroAverage:
    """Unweighted means over files with scored tokens.

    Attributes:
        word_perplexity: mean word perplexity; None if a file has none.
        standard_error: of the mean over files of mean nats per token: standard deviation over √files; None below two.
    """

    files: int
    perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None
    standard_error: float | None

    @classmethod
    def from_results(cls, results: Iterable[PerplexityResult]) -> MacroAverage:
        """Average the metrics of files."""
        scored = [result for result in results if result.tokens]
        means = np.array([result.nats / result.tokens for result in scored])
        return cls(
            files=len(scored),
            perplexity=_mean(scored, lambda result: result.perplexity),
            word_perplexity=_mean(scored, lambda result: result.word_perplexity),
            bits_per_byte=_mean(scored, lambda result: result.bits_per_byte),
            standard_error=float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else None,
        )


def _mean(results: Sequence[PerplexityResult], figure: Callable[[PerplexityResult], float | None]) -> float | None:
    values = [value for result in results if (value := figure(result)) is not None]
    return math.fsum(values) / len(values) if values and len(values) == len(results) else None


@dataclass(frozen=True)
class BatchScored:
    """Event: a batch was scored.

    Attributes:
        tokens: scored so far.
        bytes: approximate bytes of text scored so far.
        segments: of this batch, in reading order.
    """

    tokens: int
    bytes: int
    segments: Sequence[ScoredSegment] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class FileScore:
    """The totals of a file."""

    name: str
    result: PerplexityResult


def measure_perplexity(
    window_scorer: WindowScorer[W],
    tokenizer: Tokenizer,
    files: Sequence[TextFile],
    *,
    batch_size: int,
    parallel_map: ParallelMap[list[W], list[Nats]] | None = None,
) -> Iterator[BatchScored | FileScore]:
    """Score files in bounded memory, each document on its own.

    Args:
        batch_size: windows scored together, across files.
        parallel_map: scores batches in other processes, each with such a window scorer.

    Yields:
        BatchScored after each batch, with its segments in reading order: every token once, and every piece at least
        once. A FileScore for each file when all of it is scored.

    Raises:
        InputError: a file is not text that the tokenizer can encode, after all before it are scored; or the model
            outputs NaN.
    """
    reader = FileWindows(tokenizer, window_scorer.make_splitter)
    packing = WindowBatcher(reader.read(files), batch_size)
    batches = packing.batches()
    scored = packing.restore_order(map(window_scorer.score, batches) if parallel_map is None else parallel_map(batches))
    results = [PerplexityResult() for _ in files]
    tokens, text, finished = 0, 0.0, 0
    for nats in itertools.chain(scored, [[np.zeros(0)]]):
        segments = list(reader.take(np.concatenate(nats)))
        for segment in segments:
            if np.isinf(segment.nats).any() or np.isnan(segment.nats).sum() > window_scorer.unscored(segment):
                raise nan_logits_error(files[segment.piece.file].name)
            results[segment.piece.file].add_segment(segment)
            tokens += len(segment.nats)
            text += len(segment.piece.data) * len(segment.nats) / max(1, len(segment.piece.tokens))
        if segments:
            yield BatchScored(tokens, round(text), segments)
        for number in range(finished, reader.n_finished):
            yield FileScore(files[number].name, results[number])
        finished = reader.n_finished
    if reader.error is not None:
        raise reader.error
