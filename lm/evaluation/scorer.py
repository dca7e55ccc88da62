"""One object that scores files of text: a model, its tokenizer, and how it reads documents in windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from lm.config.evaluation import PerplexityConfig
from lm.errors import UsageError
from lm.evaluation.perplexity import FileScore, Scored, measure
from lm.evaluation.scoring import Nats, score_windows, surprisals
from lm.evaluation.stretches import Reading, Stretch
from lm.evaluation.windows import CausalWindow, Cutter, MaskedCutter, MaskedWindow, window_sizes
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.processes import Share
from lm.text.files import TextFile
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_text_frame, require_mask_token
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class CausalReading:
    """Each token is predicted from those before it.

    Attributes:
        model: in eval mode.
        start_token: what a document's first token is predicted from; without it that is not scored.
        context: tokens the model reads at once.
        stride: from one window to the next, at most `context`.
    """

    model: DecoderOnly
    start_token: int | None
    context: int
    stride: int

    def cutter(self) -> Cutter:
        """See `Reading`."""
        return Cutter(context=self.context, stride=self.stride, start_token=self.start_token)

    def score(self, windows: Sequence[CausalWindow]) -> list[Nats]:
        """See `Reading`."""
        return score_windows(self.model, windows)

    def unscored(self, stretch: Stretch) -> int:
        """See `Reading`: a document's first token, where nothing predicts it."""
        begins = stretch.first == stretch.passage.first == 0 and len(stretch.nats) > 0
        return int(begins and self.start_token is None)


@dataclass(frozen=True)
class MaskedReading:
    """Each token is masked in turn, and predicted from those on both sides: its pseudo-surprisal.

    Attributes:
        model: in eval mode.
        mask: the token that hides one.
        frame: the tokens that start and end a document.
        context: tokens the model reads at once.
        stride: from one window to the next, at most `context`.
        every: 1 to score all tokens, N to score each Nth of a document.
        batch_size: rows read side by side; each has one token masked.

    Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.
    """

    model: EncoderOnly
    mask: int
    frame: SpecialTokenFrame
    context: int
    stride: int
    every: int
    batch_size: int

    def cutter(self) -> MaskedCutter:
        """See `Reading`."""
        return MaskedCutter(context=self.context, stride=self.stride, frame=self.frame)

    def score(self, windows: Sequence[MaskedWindow]) -> list[Nats]:
        """See `Reading`."""
        return [self._score(window) for window in windows]

    @torch.inference_mode()
    def _score(self, window: MaskedWindow) -> Nats:
        places = np.array(window.places(every=self.every), dtype=np.int64)
        nats = np.full(window.last - window.first, np.nan)
        tokens = torch.from_numpy(window.tokens.astype(np.int64)).to(next(self.model.parameters()).device)
        for start in range(0, len(places), self.batch_size):
            some = places[start : start + self.batch_size]
            masked = torch.from_numpy(some).to(tokens.device)
            row = torch.arange(len(some), device=tokens.device)
            rows = tokens.repeat(len(some), 1)
            rows[row, masked] = self.mask
            nats[some - window.first] = surprisals(self.model, self.model.hidden(rows)[row, masked], tokens[masked])
        return nats

    def unscored(self, stretch: Stretch) -> int:
        """See `Reading`: all tokens but each Nth."""
        first = stretch.passage.first + stretch.first
        return len(stretch.nats) - len(range(-first % self.every, len(stretch.nats), self.every))


def reading_of(
    model: DecoderOnly | EncoderOnly,
    tokenizer: Tokenizer,
    *,
    context: int,
    stride: int,
    every: int = 1,
    batch_size: int = 16,
) -> Reading[Any]:
    """How a model reads documents.

    Args:
        model: in eval mode.
        tokenizer: the model's.
        context: tokens the model reads at once.
        stride: from one window to the next, at most `context`.
        every: of a masked model, score each Nth token only.
        batch_size: of a masked model, rows that are read side by side.

    Raises:
        UsageError: the model is masked, and the tokenizer has no mask.
    """
    if isinstance(model, EncoderOnly):
        frame, mask = build_text_frame(tokenizer), require_mask_token(tokenizer)
        return MaskedReading(model, mask, frame, context, stride, every, batch_size)
    return CausalReading(model, tokenizer.start_of_text, context, stride)


@dataclass(frozen=True)
class Scorer:
    """Scores files of text by a model that continues texts, or by a masked one.

    Attributes:
        model: in eval mode.
        tokenizer: of the model.
        separator: the line that ends a document.
        context: tokens in a window.
        stride: tokens from one window to the next.
        batch_size: windows scored together; changes the speed, not the result.
        every: of a masked model, 1 to score all tokens, N to score each Nth of a document.
        share: has batches of windows scored by other processes, each with the `reading` of such a scorer.
    """

    model: DecoderOnly | EncoderOnly
    tokenizer: Tokenizer
    separator: str
    context: int
    stride: int
    batch_size: int
    every: int = 1
    share: Share[list[Any], list[Nats]] | None = None

    @classmethod
    def of(
        cls, model: DecoderOnly | EncoderOnly, tokenizer: Tokenizer, config: PerplexityConfig, *, separator: str
    ) -> Self:
        """A scorer with the windows that a config means for a model.

        Raises:
            UsageError: the windows would leave tokens out, or reach beyond the positions that the model has; or a
                sample of the tokens is asked of a model that reads all of them at once.
        """
        if config.every > 1 and not model.config.is_masked:
            raise UsageError(
                "a model that continues texts scores all tokens at once: leave `every` out", settings=["every"]
            )
        context, stride = window_sizes(model.config, config)
        return cls(model, tokenizer, separator, context, stride, config.batch_size, config.every)

    @property
    def reading(self) -> Reading[Any]:
        """How the model reads documents."""
        return reading_of(
            self.model,
            self.tokenizer,
            context=self.context,
            stride=self.stride,
            every=self.every,
            batch_size=self.batch_size,
        )

    def measure(self, files: Sequence[TextFile]) -> Iterator[Scored | FileScore]:
        """Score files; see `lm.evaluation.perplexity.measure`."""
        return measure(
            self.reading, self.tokenizer, files, separator=self.separator, batch_size=self.batch_size, share=self.share
        )

    def stretches(
        self, files: Sequence[TextFile], *, scores: list[FileScore], watch: Callable[[Scored], None] | None = None
    ) -> Iterator[Stretch]:
        """Score files, piece by piece.

        Args:
            files: to be scored.
            scores: gets the figures of each file in the end.
            watch: sees each batch as it is scored.
        """
        for event in self.measure(files):
            if isinstance(event, FileScore):
                scores.append(event)
                continue
            if watch:
                watch(event)
            yield from event.stretches
