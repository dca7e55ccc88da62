"""A run that scores files of text: the model, its tokenizer, and the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cli.flags.loading import load_decoder
from cli.flags.options import Given
from cli.perplexity.report import conditions
from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.evaluation.perplexity import FileScore, Scored, measure
from lm.evaluation.scoring import Stretch
from lm.evaluation.windows import window_sizes
from lm.model.transformer import DecoderOnly
from lm.text.files import TextFile


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A loaded run with the settings to score files by.

    Attributes:
        run: the folder, as the user named it.
        given: the settings that the user gave.
        model: the decoder.
        loaded: the same with its tokenizer and config.
        data: how files are split into documents.
        context: the most tokens that a window has.
        stride: how many tokens each window goes on.
        batch_size: windows at once.
    """

    run: Path
    given: Given
    model: DecoderOnly
    loaded: LoadedModel
    data: DataConfig
    context: int
    stride: int
    batch_size: int

    @classmethod
    def load(cls, run: Path, given: Given, *, data: DataConfig | None = None) -> Scorer:
        """Load a run; files are split into documents as `data` says, or else as they were for training it."""
        config = PerplexityConfig(**given["perplexity"])
        model, loaded = load_decoder(run, HardwareConfig(**given["hardware"]), command="perplexity")
        context, stride = window_sizes(model.config, config)
        data = data or dataclasses.replace(loaded.config.data, supervised=False, **given["data"])
        return cls(run, given, model, loaded, data, context, stride, config.batch_size)

    @property
    def conditions(self) -> dict[str, Any]:
        """How text is scored, and by which model, for reports."""
        return conditions(self.run, self.loaded, context=self.context, stride=self.stride)

    def measure(self, files: Sequence[TextFile]) -> Iterator[Scored | FileScore]:
        """Score files; yields the tokens of each batch, and the figures of each file when all of it is scored."""
        return measure(
            self.model,
            self.loaded.tokenizer,
            files,
            separator=self.data.separator,
            context=self.context,
            stride=self.stride,
            batch_size=self.batch_size,
        )

    def stretches(
        self, files: Sequence[TextFile], *, scores: list[FileScore], watch: Callable[[Scored], None] | None = None
    ) -> Iterator[Stretch]:
        """Score files, yielding what was scored; `watch` sees each batch, and the figures of files go to `scores`."""
        for event in self.measure(files):
            if isinstance(event, FileScore):
                scores.append(event)
                continue
            if watch:
                watch(event)
            yield from event.stretches
