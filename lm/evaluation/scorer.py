"""One object that scores files of text: a model, its tokenizer, and how documents are cut into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from lm.config.evaluation import PerplexityConfig
from lm.evaluation.perplexity import FileScore, Scored, measure
from lm.evaluation.scoring import Stretch
from lm.evaluation.windows import window_sizes
from lm.model.transformer import DecoderOnly
from lm.text.files import TextFile
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Scorer:
    """Scores files of text by a decoder-only model.

    Attributes:
        model: in eval mode.
        tokenizer: of the model.
        separator: the line that ends a document.
        context: tokens in a window.
        stride: tokens from one window to the next.
        batch_size: windows scored together; changes the speed, not the result.
    """

    model: DecoderOnly
    tokenizer: Tokenizer
    separator: str
    context: int
    stride: int
    batch_size: int

    @classmethod
    def of(cls, model: DecoderOnly, tokenizer: Tokenizer, config: PerplexityConfig, *, separator: str) -> Self:
        """A scorer with the windows that a config means for a model.

        Raises:
            UsageError: the windows would leave tokens out, or reach beyond the positions that the model has.
        """
        context, stride = window_sizes(model.config, config)
        return cls(model, tokenizer, separator, context, stride, config.batch_size)

    def measure(self, files: Sequence[TextFile]) -> Iterator[Scored | FileScore]:
        """Score files; see `lm.evaluation.perplexity.measure`."""
        return measure(
            self.model,
            self.tokenizer,
            files,
            separator=self.separator,
            context=self.context,
            stride=self.stride,
            batch_size=self.batch_size,
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
