"""Documents cut into overlapping windows that score every token exactly once, for causal and for masked models.

A document is read as its tokens, after the document-start token if the tokenizer has one; every token that has one
before it is scored. A window is at most `context` tokens that the model reads, each predicting the next. The first
window begins with the document and scores all it predicts; each later one begins `stride` tokens further and scores
what the windows before it did not: its last `stride` predictions. So a token sees everything before it, or at least
`context - stride + 1` tokens, and a start token is read in the first window only. Without a start token a document's
first token cannot be predicted; it is counted as unscored, and its bytes are not counted.

A masked model reads a document with the tokens that start and end it, and each token is masked in turn. Of what two
windows share, each scores the half that is nearer to its middle: a token sees at least (context - stride) / 2 tokens on
either side, or all there are. Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.
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
    """Tokens read at once, each predicting the next.

    Windows in their order account for every token of a document once: `unscored`, then `scored` of each.

    Attributes:
        tokens: (length,) ids; all but the last are read.
        scored: how many of the last predictions count.
        unscored: first tokens that nothing predicts: 1 where a document starts without a start token, else 0.
    """

    tokens: Ids
    scored: int
    unscored: int


class CausalWindowSplitter:
    """Cuts one document, which comes in parts, into windows."""

    def __init__(self, *, context: int, stride: int, start_token: int | None) -> None:
        """Begin a document.

        Args:
            context: tokens the model reads at once.
            stride: from one window to the next, at most `context`.
            start_token: what the first token is predicted from.
        """
        self._context, self._stride = context, stride
        self._held: Ids = np.array([] if start_token is None else [start_token], dtype=np.int64)
        self._due = context  # predictions of a full window at this place that no window before it scored
        self._unscored = int(start_token is None)

    def push(self, tokens: Ids) -> Iterator[CausalWindow]:
        """The windows that are complete now that these tokens are known."""
        self._held = np.concatenate((self._held, tokens))
        while len(self._held) > self._context:
            yield CausalWindow(self._held[: self._context + 1], self._due, self._unscored)
            self._held, self._due, self._unscored = self._held[self._stride :], self._stride, 0

    def finish(self) -> Iterator[CausalWindow]:
        """The last window, if anything is left to account for."""
        scored = len(self._held) - 1 - (self._context - self._due)
        if len(self._held) and scored + self._unscored > 0:
            yield CausalWindow(self._held, scored, self._unscored)


def resolve_window_sizes(model: ModelConfig, config: PerplexityConfig) -> tuple[int, int]:
    """The context and the stride that a config means for a model.

    Raises:
        UsageError: tokens would be left out, or the model has no positions for so long a context.
    """
    context = model.context_length if config.context is None else config.context
    stride = max(1, context // 2) if config.stride is None else config.stride
    if stride > context:
        raise UsageError(
            f"stride {stride} leaves out tokens between windows of {context}; give at most the context",
            settings=["stride", "context"],
        )
    limit = model.position_limit
    if limit is not None and context > limit:
        raise UsageError(
            f"context {context} is beyond the {limit} positions that the model learned", settings=["context"]
        )
    return context, stride


@dataclass(frozen=True)
class MaskedWindow:
    """Tokens that are read at once, of which some are masked in turn.

    Windows in their order account for every token of a document once.

    Attributes:
        tokens: (length,) ids.
        first: place of the first one that is accounted for.
        last: the place after the last one.
        number: which token of the document the first one is, from 0.
    """

    tokens: Ids
    first: int
    last: int
    number: int

    def scored_positions(self, *, every: int) -> Sequence[int]:
        """Where the tokens are that are scored: all, or each Nth of the document."""
        return range(self.first + -self.number % every, self.last, every)


class MaskedWindowSplitter:
    """Cuts one document, which comes in parts, into windows."""

    def __init__(self, *, context: int, stride: int, frame: SpecialTokenFrame) -> None:
        """Begin a document.

        Args:
            context: tokens the model reads at once, more than the frame has.
            stride: from one window to the next, at most `context`.
            frame: the tokens that start and end a document.
        """
        self._context, self._stride, self._frame = context, stride, frame
        self._margin = (context - stride) // 2
        self._held: Ids = np.array(frame.before, dtype=np.int64)
        self._first, self._number = len(frame.before), 0

    def push(self, tokens: Ids) -> Iterator[MaskedWindow]:
        """The windows that are complete now that these tokens are known."""
        self._held = np.concatenate((self._held, tokens))
        while len(self._held) + len(self._frame.after) > self._context:
            yield from self._window(last=self._margin + self._stride)

    def finish(self) -> Iterator[MaskedWindow]:
        """The last window, if anything is left to account for."""
        if len(self._held) > self._first:
            last = len(self._held)
            self._held = np.concatenate((self._held, np.array(self._frame.after, dtype=np.int64)))
            yield MaskedWindow(self._held, self._first, last, self._number)

    def _window(self, *, last: int) -> Iterator[MaskedWindow]:
        """The next window, which accounts for what comes before the place `last`; the one after it is begun."""
        if last > self._first:
            yield MaskedWindow(self._held[: self._context], self._first, last, self._number)
            self._number += last - self._first
        self._held, self._first = self._held[self._stride :], max(self._first, last) - self._stride
