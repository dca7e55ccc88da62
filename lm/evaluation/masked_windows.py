"""Cutting documents into windows in which each token is masked in turn: the pseudo-perplexity of a masked model.

A document is read with the tokens that start and end it. A window is at most `context` tokens. The first begins with
the document, and each later one `stride` tokens further; of what two windows share, each scores the half that is nearer
to its middle. So a token sees at least (context - stride) / 2 tokens on either side, or all there are.

Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lm.tokenizer.framing import Frame

Ids = npt.NDArray[np.integer[Any]]


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

    def places(self, *, every: int) -> Sequence[int]:
        """Where the tokens are that are scored: all, or each Nth of the document."""
        return range(self.first + -self.number % every, self.last, every)


class MaskedCutter:
    """Cuts one document, which comes in parts, into windows."""

    def __init__(self, *, context: int, stride: int, frame: Frame) -> None:
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
