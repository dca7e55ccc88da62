"""Score files of text by a causal or masked model with sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from lm.config.evaluation import PerplexityConfig
from lm.errors import UsageError
from lm.evaluation.batch_scoring import Nats, compute_surprisals, score_windows
from lm.evaluation.file_scoring import ScoredSegment, WindowScorer
from lm.evaluation.perplexity import BatchScored, FileScore, measure_perplexity
from lm.evaluation.scoring_windows import (
    CausalWindow,
    CausalWindowSplitter,
    MaskedWindow,
    MaskedWindowSplitter,
    resolve_window_sizes,
)
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.processes import ParallelMap
from lm.text.text_file import TextFile
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_text_frame, require_mask_token
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class CausalWindowScorer:
    """Scores windows of a causal model: each token is predicted from those before it.

    Attributes:
        start_token: predicts a document's first token, which otherwise is not scored.
    """

    model: DecoderOnly
    start_token: int | None
    context: int
    stride: int

    def make_splitter(self) -> CausalWindowSplitter:
        return CausalWindowSplitter(context=self.context, stride=self.stride, start_token=self.start_token)

    def score(self, windows: Sequence[CausalWindow]) -> list[Nats]:
        return score_windows(self.model, windows)

    def unscored(self, segment: ScoredSegment) -> int:
        """Return 1 for a document's first token without a start token; see `WindowScorer`."""
        begins = segment.first == segment.piece.first == 0 and len(segment.nats) > 0
        return int(begins and self.start_token is None)


@dataclass(frozen=True)
class MaskedWindowScorer:
    """Scores windows of a masked model: each token is masked, one at a time (pseudo-surprisal).

    Attributes:
        mask: the mask token.
        frame: the start and end tokens of a document.
        score_every: score every Nth token of a document.
        batch_size: rows per forward pass; each has one masked token.

    Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.
    """

    model: EncoderOnly
    mask: int
    frame: SpecialTokenFrame
    context: int
    stride: int
    score_every: int
    batch_size: int

    def make_splitter(self) -> MaskedWindowSplitter:
        return MaskedWindowSplitter(context=self.context, stride=self.stride, frame=self.frame)

    def score(self, windows: Sequence[MaskedWindow]) -> list[Nats]:
        return [self._score(window) for window in windows]

    @torch.inference_mode()
    def _score(self, window: MaskedWindow) -> Nats:
        positions = np.array(window.scored_positions(score_every=self.score_every), dtype=np.int64)
        nats = np.full(window.last - window.first, np.nan)
        tokens = torch.from_numpy(window.tokens.astype(np.int64)).to(next(self.model.parameters()).device)
        for start in range(0, len(positions), self.batch_size):
            some = positions[start : start + self.batch_size]
            masked = torch.from_numpy(some).to(tokens.device)
            row = torch.arange(len(some), device=tokens.device)
            rows = tokens.repeat(len(some), 1)
            rows[row, masked] = self.mask
            nats[some - window.first] = compute_surprisals(
                self.model, self.model.hidden(rows)[row, masked], tokens[masked]
            )
        return nats

    def unscored(self, segment: ScoredSegment) -> int:
        """Return the number of tokens skipped by `score_every`; see `WindowScorer`."""
        first = segment.piece.first + segment.first
        return len(segment.nats) - len(range(-first % self.score_every, len(segment.nats), self.score_every))


def build_window_scorer(
    model: DecoderOnly | EncoderOnly,
    tokenizer: Tokenizer,
    *,
    context: int,
    stride: int,
    score_every: int = 1,
    batch_size: int = 16,
) -> WindowScorer[Any]:
    """Build the window scorer of a model.

    Args:
        score_every: for a masked model, score only every Nth token.
        batch_size: for a masked model, rows per forward pass.

    Raises:
        UsageError: the model is masked, and the tokenizer has no mask.
    """
    if isinstance(model, EncoderOnly):
        frame, mask = build_text_frame(tokenizer), require_mask_token(tokenizer)
        return MaskedWindowScorer(model, mask, frame, context, stride, score_every, batch_size)
    return CausalWindowScorer(model, tokenizer.start_of_text, context, stride)


@dataclass(frozen=True)
class TextScorer:
    """Scores files of text by a causal or masked model.

    Attributes:
        model: in eval mode.
        stride: tokens from one window to the next.
        batch_size: windows scored together; changes the speed, not the result.
        score_every: for a masked model, score only every Nth token of a document.
        parallel_map: scores batches of windows in other processes, each with the `window_scorer` of such a scorer.
    """

    model: DecoderOnly | EncoderOnly
    tokenizer: Tokenizer
    context: int
    stride: int
    batch_size: int
    score_every: int = 1
    parallel_map: ParallelMap[list[Any], list[Nats]] | None = None

    @classmethod
    def from_config(cls, model: DecoderOnly | EncoderOnly, tokenizer: Tokenizer, config: PerplexityConfig) -> Self:
        """Build a scorer from settings.

        Raises:
            UsageError: windows would skip tokens or exceed the model's positions, or a causal model has `score_every`.
        """
        if config.score_every > 1 and not model.config.is_masked:
            raise UsageError(
                "a model that continues texts scores all tokens at once: leave `score_every` out",
            )
        context, stride = resolve_window_sizes(model.config, config)
        return cls(model, tokenizer, context, stride, config.batch_size, config.score_every)

    @property
    def window_scorer(self) -> WindowScorer[Any]:
        return build_window_scorer(
            self.model,
            self.tokenizer,
            context=self.context,
            stride=self.stride,
            score_every=self.score_every,
            batch_size=self.batch_size,
        )

    def measure(self, files: Sequence[TextFile]) -> Iterator[BatchScored | FileScore]:
        """Score files; see `lm.evaluation.perplexity.measure_perplexity`."""
        return measure_perplexity(
            self.window_scorer,
            self.tokenizer,
            files,
            batch_size=self.batch_size,
            parallel_map=self.parallel_map,
        )

    def score_segments(
        self,
        files: Sequence[TextFile],
        *,
        scores: list[FileScore],
        on_batch: Callable[[BatchScored], None] | None = None,
    ) -> Iterator[ScoredSegment]:
        """Score files, segment by segment.

        Args:
            scores: receives the totals of each file when all of it is scored.
            on_batch: called with each scored batch.
        """
        for event in self.measure(files):
            if isinstance(event, FileScore):
                scores.append(event)
                continue
            if on_batch:
                on_batch(event)
            yield from event.segments
