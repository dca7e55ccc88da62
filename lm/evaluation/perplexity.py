"""Perplexity of text: every token is scored exactly once, in windows that overlap as much as asked for.

A document is read as its tokens, after the document-start token if the tokenizer has one; every token that has one
before it is scored. A window is at most `context` tokens that the model reads, each predicting the next. The first
window begins with the document and scores all it predicts; each later one begins `stride` tokens further and scores
what the windows before it did not: its last `stride` predictions. So a token sees everything before it, or at least
`context - stride + 1` tokens, and a start token is read in the first window only. Without a start token a document's
first token cannot be predicted; it is counted as unscored, and its bytes are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from lm.config import ModelConfig, PerplexityConfig
from lm.data.documents import Source, fragments
from lm.data.pieces import Piece, pieces
from lm.data.tokenizer import Tokenizer
from lm.errors import InputError, UsageError
from lm.model.transformer import DecoderOnly

Ids = npt.NDArray[np.integer[Any]]
Nats = npt.NDArray[np.float64]

_LOGITS_AT_ONCE = 1 << 24  # 64 MB of float32, whatever the vocabulary and the batch


@dataclass
class Tally:
    """Sums over scored text, and the figures that follow from them.

    Attributes:
        tokens: scored ones.
        unscored: first tokens of documents, where there is no start token to predict them from.
        documents: documents read.
        words: whitespace-separated words of their text.
        bytes: UTF-8 bytes of the text of the scored tokens.
        nats: surprisal of the scored tokens.
        squares: sum of the squares of their surprisals.
    """

    tokens: int = 0
    unscored: int = 0
    documents: int = 0
    words: int = 0
    bytes: int = 0
    nats: float = 0.0
    squares: float = 0.0

    def add(self, nats: Nats) -> None:
        """Count scored tokens."""
        self.tokens += len(nats)
        self.nats += float(nats.sum())
        self.squares += float(np.square(nats).sum())

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """The sums over several tallies."""
        total = cls()
        for tally in tallies:
            for name, value in vars(tally).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    @property
    def perplexity(self) -> float | None:
        """exp(nats / tokens); None without tokens."""
        return _exp_ratio(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """exp(nats / words): comparable across tokenizers; None without words or beyond the greatest float."""
        return _exp_ratio(self.nats, self.words) if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """Bits of surprisal per UTF-8 byte: comparable across tokenizers; None without bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None

    @property
    def standard_error(self) -> float | None:
        """Of the mean nats per token: sample standard deviation / √tokens, as if tokens were independent draws."""
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
class Progress:
    """A batch was scored.

    Attributes:
        tokens: scored so far.
        bytes: about how much text these are.
    """

    tokens: int
    bytes: int


@dataclass(frozen=True)
class FileScore:
    """A file's figures."""

    name: str
    tally: Tally


@dataclass(frozen=True)
class _Window:
    tokens: Ids  # each but the last is read and predicts the next
    scored: int  # how many of the last predictions count
    tally: Tally


class _Cutter:
    """Cuts one document, which comes in parts, into windows."""

    def __init__(self, *, context: int, stride: int, start_token: int | None, tally: Tally) -> None:
        self._context, self._stride, self._tally = context, stride, tally
        self._held: Ids = np.array([] if start_token is None else [start_token], dtype=np.int64)
        self._due = context  # predictions of a full window at this place that no window before it scored

    def push(self, tokens: Ids) -> Iterator[_Window]:
        self._held = np.concatenate((self._held, tokens))
        while len(self._held) > self._context:
            yield _Window(self._held[: self._context + 1], self._due, self._tally)
            self._held, self._due = self._held[self._stride :], self._stride

    def finish(self) -> Iterator[_Window]:
        scored = len(self._held) - 1 - (self._context - self._due)
        if scored > 0:
            yield _Window(self._held, scored, self._tally)


def window_sizes(model: ModelConfig, config: PerplexityConfig) -> tuple[int, int]:
    """The context and the stride that a config means for a model.

    Raises:
        UsageError: tokens would be left out, or the model has no positions for so long a context.
    """
    context = model.context_length if config.context is None else config.context
    stride = max(1, context // 2) if config.stride is None else config.stride
    if stride > context:
        raise UsageError(f"stride {stride} leaves out tokens between windows of {context}; give at most --context")
    if model.positions == "learned" and context > model.context_length:
        raise UsageError(
            f"context {context} is beyond the {model.context_length} positions that the model learned (--context)"
        )
    return context, stride


def score(
    model: DecoderOnly,
    tokens: Sequence[int] | Ids,
    *,
    context: int,
    stride: int,
    start_token: int | None,
    batch_size: int = 16,
) -> Nats:
    """Surprisal of each token of one document, in order.

    Args:
        model: in eval mode.
        tokens: the document's ids.
        context: tokens the model reads at once.
        stride: from one window to the next, at most `context`.
        start_token: what the first token is predicted from; without it the first token is left out.
        batch_size: windows scored together.

    Returns:
        (tokens,) nats in float64, or (tokens - 1,) without a start token.
    """
    cutter = _Cutter(context=context, stride=stride, start_token=start_token, tally=Tally())
    windows = (window for part in (cutter.push(np.asarray(tokens, dtype=np.int64)), cutter.finish()) for window in part)
    nats = [part for batch in _batches(windows, batch_size) for part in _score_windows(model, batch)]
    return np.concatenate(nats) if nats else np.zeros(0)


def measure(
    model: DecoderOnly,
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    *,
    separator: str,
    context: int,
    stride: int,
    batch_size: int,
) -> Iterator[Progress | FileScore]:
    """Score files of any size in bounded memory, each document apart.

    Args:
        model: in eval mode.
        tokenizer: the model's.
        sources: text files.
        separator: the line that ends a document within a file.
        context: tokens the model reads at once.
        stride: from one window to the next, at most `context`.
        batch_size: windows scored together, of whatever files.

    Yields:
        Progress after each batch; at the end one FileScore a file.

    Raises:
        InputError: a file is not text that the tokenizer can encode, or the model's output is not a number.
    """
    tallies = [Tally() for _ in sources]
    reader = _Reader(tokenizer, separator, context, stride)
    windows = (window for source, tally in zip(sources, tallies, strict=True) for window in reader.read(source, tally))
    tokens = 0
    for batch in _batches(windows, batch_size):
        for window, nats in zip(batch, _score_windows(model, batch), strict=True):
            window.tally.add(nats)
            tokens += len(nats)
        yield Progress(tokens, reader.bytes * tokens // reader.tokens)
    for source, tally in zip(sources, tallies, strict=True):
        if not math.isfinite(tally.nats):
            raise InputError(f"{source.name}: the model's output on this file is not a number; the model is damaged")
        yield FileScore(source.name, tally)


class _Reader:
    """Turns files into windows, and counts what there is in them.

    Attributes:
        tokens: read so far.
        bytes: of text, read so far.
    """

    def __init__(self, tokenizer: Tokenizer, separator: str, context: int, stride: int) -> None:
        self._tokenizer, self._separator, self._context, self._stride = tokenizer, separator, context, stride
        self.tokens = self.bytes = 0

    def read(self, source: Source, tally: Tally) -> Iterator[_Window]:
        cutter, last = self._cutter(tally), " "
        for piece in pieces(fragments(source, self._separator), self._tokenizer):
            if piece.starts_document:
                yield from cutter.finish()
                cutter, last = self._cutter(tally), " "
            tokens = self._encode(piece, source)
            self._count(piece, tokens, tally, within_word=not (last.isspace() or piece.text[0].isspace()))
            last = piece.text[-1]
            yield from cutter.push(tokens)
        yield from cutter.finish()

    def _cutter(self, tally: Tally) -> _Cutter:
        start_token = self._tokenizer.start_of_text
        return _Cutter(context=self._context, stride=self._stride, start_token=start_token, tally=tally)

    def _encode(self, piece: Piece, source: Source) -> Ids:
        try:
            return self._tokenizer.encode_batch([piece.context + piece.text])[0][piece.context_tokens :]
        except InputError as error:
            raise InputError(f"{source.name}: {error}") from None

    def _count(self, piece: Piece, tokens: Ids, tally: Tally, *, within_word: bool) -> None:
        size = len(piece.text.encode())
        self.tokens, self.bytes = self.tokens + len(tokens), self.bytes + size
        tally.documents += piece.starts_document
        tally.words += len(piece.text.split()) - within_word
        tally.bytes += size
        if piece.starts_document and len(tokens) and self._tokenizer.start_of_text is None:
            tally.unscored += 1
            tally.bytes -= len(self._tokenizer.token_bytes(int(tokens[0])))


def _batches(windows: Iterable[_Window], size: int) -> Iterator[list[_Window]]:
    iterator = iter(windows)
    while batch := list(islice(iterator, size)):
        yield batch


@torch.inference_mode()
def _score_windows(model: DecoderOnly, batch: Sequence[_Window]) -> list[Nats]:
    """Surprisal of the scored tokens of each window; logits are computed for these only, a bounded number at a time."""
    padded = np.zeros((len(batch), max(len(window.tokens) for window in batch)), dtype=np.int64)
    scored = np.zeros(padded.shape, dtype=bool)
    for row, window in enumerate(batch):
        end = len(window.tokens)
        padded[row, :end] = window.tokens
        scored[row, end - window.scored : end] = True
    device = next(model.parameters()).device
    tokens, mask = torch.from_numpy(padded).to(device), torch.from_numpy(scored).to(device)
    hidden = model.hidden(tokens[:, :-1])[mask[:, 1:]]  # padding comes last, so nothing that counts sees it
    targets = tokens[mask]
    rows = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    parts = [
        F.cross_entropy(model.logits(states).float(), expected, reduction="none")
        for states, expected in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    nats = torch.cat(parts).cpu().numpy().astype(np.float64)
    return np.split(nats, np.cumsum([window.scored for window in batch])[:-1])
