"""Overlapping windows that score every token of a document exactly once, for causal and masked models.

A document is its tokens after the start token, if the tokenizer has one; every token with a predecessor is scored. A
window has at most `context` input tokens, each predicting the next. The first window scores all it predicts; each later
one begins `stride` tokens further and scores its last `stride` predictions. So a token sees all preceding tokens, or at
least `context - stride + 1` of them; the start token is only in the first window. Without a start token, the first
token is unscored, and its bytes don't count.

A masked model reads a document with its start and end token. Of the overlap of two windows, each scores the half nearer
to its middle, so a token sees at least (context - stride) / 2 tokens on either side, or all there are. Source: Salazar
et al. 2020 (Masked Language Model Scoring), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lm.config.evaluation import PerplexityConfig
from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.tokenizer.special_tokens import SpecialTokenFrame

Ids = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class CausalWindow:
    """Input tokens, each predicting the next.

    The windows of a document account for each token once: `unscored`, then `scored` of each.

    Attributes:
        tokens: (length,) IDs; all but the last are inputs.
        scored: how many of the last predictions count.
        unscored: first tokens without a prediction: 1 where a document starts without a start token, else 0.
    """

    tokens: Ids
    scored: int
    unscored: int


class CausalWindowSplitter:
    """Splits one document, given in parts, into causal windows."""

    def __init__(self, *, context: int, stride: int, start_token: int | None) -> None:
        """Start a document.

        Args:
            context: window length in tokens.
            stride: tokens from one window to the next, at most `context`.
            start_token: predicts the first token.
        """
        self._context, self._stride = context, stride
        self._held: Ids = np.array([] if start_token is None else [start_token], dtype=np.int64)
        self._due = context  # predictions of a full window at this place that no window before it scored
        self._unscored = int(start_token is None)

    def push(self, tokens: Ids) -> Iterator[CausalWindow]:
        """Yield the windows that are complete with these tokens."""
        self._held = np.concatenate((self._held, tokens))
        while len(self._held) > self._context:
            yield CausalWindow(self._held[: self._context + 1], self._due, self._unscored)
            self._held, self._due, self._unscored = self._held[self._stride :], self._stride, 0

    def finish(self) -> Iterator[CausalWindow]:
        """Yield the last window, if tokens are left."""
        scored = len(self._held) - 1 - (self._context - self._due)
        if len(self._held) and scored + self._unscored > 0:
            yield CausalWindow(self._held, scored, self._unscored)


def resolve_window_sizes(model: ModelConfig, config: PerplexityConfig) -> tuple[int, int]:
    """Return context and stride for a model.

    Raises:
        UsageError: tokens would be skipped, or the context exceeds the model's positions.
    """
    context = model.context_length if config.context is None else config.context
    stride = max(1, context // 2) if config.stride is None else config.stride
    if stride > context:
        raise UsageError(
            f"stride {stride} leaves out tokens between windows of {context}; give at most the context",
        )
    limit = model.position_limit
    if limit is not None and context > limit:
        raise UsageError(f"context {context} is beyond the {limit} positions that the model learned")
    return context, stride


@dataclass(frozen=True)
class MaskedWindow:
    """Tokens of which some are masked, one at a time.

    The windows of a document account for each token once.

    Attributes:
        tokens: (length,) IDs.
        first: position of the first token accounted for.
        last: position after the last one.
        number: index of the first one in the document.
    """

    tokens: Ids
    first: int
    last: int
    number: int

    def scored_positions(self, *, score_every: int) -> Sequence[int]:
        """Return the positions to score: all, or those of every Nth token of the document."""
        return range(self.first + -self.number % score_every, self.last, score_every)


class MaskedWindowSplitter:
    """Splits one document, given in parts, into masked windows."""

    def __init__(self, *, context: int, stride: int, frame: SpecialTokenFrame) -> None:
        """Start a document.

        Args:
            context: window length in tokens, more than the special tokens.
            stride: tokens from one window to the next, at most `context`.
        """
        self._context, self._stride, self._frame = context, stride, frame
        self._margin = (context - stride) // 2
        self._held: Ids = np.array(frame.before, dtype=np.int64)
        self._first, self._number = len(frame.before), 0

    def push(self, tokens: Ids) -> Iterator[MaskedWindow]:
        """Yield the windows that are complete with these tokens."""
        self._held = np.concatenate((self._held, tokens))
        while len(self._held) + len(self._frame.after) > self._context:
            yield from self._window(last=self._margin + self._stride)

    def finish(self) -> Iterator[MaskedWindow]:
        """Yield the last window, if tokens are left."""
        if len(self._held) > self._first:
            last = len(self._held)
            self._held = np.concatenate((self._held, np.array(self._frame.after, dtype=np.int64)))
            yield MaskedWindow(self._held, self._first, last, self._number)

    def _window(self, *, last: int) -> Iterator[MaskedWindow]:
        """Yield the window that accounts for the tokens before position `last`, and start the next."""
        if last > self._first:
            yield MaskedWindow(self._held[: self._context], self._first, last, self._number)
            self._number += last - self._first
        self._held, self._first = self._held[self._stride :], max(self._first, last) - self._stride
