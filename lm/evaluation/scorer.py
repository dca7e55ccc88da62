"""One object that scores files of text: a model, its tokenizer, and how documents are cut into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lm.config.evaluation import PerplexityConfig
from lm.errors import UsageError
from lm.evaluation.perplexity import FileScore, Scored, measure
from lm.evaluation.reading import reading_of
from lm.evaluation.scoring import Nats
from lm.evaluation.stretches import Reading, Stretch
from lm.evaluation.windows import window_sizes
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.processes import Share
from lm.text.files import TextFile
from lm.tokenizer.tokenizer import Tokenizer


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
