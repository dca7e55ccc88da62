"""A loaded run, and how it is to score files of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.flags.loading import load_decoder
from cli.flags.options import Given
from cli.perplexity.report import conditions
from lm.config.data import DataConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig

if TYPE_CHECKING:
    from lm.checkpoint import LoadedModel
    from lm.evaluation.perplexity import FileScore, Scored
    from lm.evaluation.scoring import Stretch
    from lm.model.transformer import DecoderOnly
    from lm.text.files import TextFile


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A loaded run, and how it is to score files."""

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
        """A run with the settings that were given; documents are parted as `data` says, or as it was trained."""
        config = PerplexityConfig(**given["perplexity"])
        model, loaded = load_decoder(run, HardwareConfig(**given["hardware"]), command="perplexity")
        from lm.evaluation.windows import window_sizes

        context, stride = window_sizes(model.config, config)
        data = data or dataclasses.replace(loaded.config.data, supervised=False, **given["data"])
        return cls(run, given, model, loaded, data, context, stride, config.batch_size)

    @property
    def conditions(self) -> dict[str, Any]:
        """For reports."""
        return conditions(self.run, self.loaded, context=self.context, stride=self.stride)

    def measure(self, sources: Sequence[TextFile]) -> Iterator[Scored | FileScore]:
        """Score files."""
        from lm.evaluation.perplexity import measure

        return measure(
            self.model,
            self.loaded.tokenizer,
            sources,
            separator=self.data.separator,
            context=self.context,
            stride=self.stride,
            batch_size=self.batch_size,
        )

    def stretches(
        self, sources: Sequence[TextFile], *, scores: list[FileScore], watch: Callable[[Scored], None] | None = None
    ) -> Iterator[Stretch]:
        """Score files; `watch` sees each batch, and in the end `scores` holds the figures of each file."""
        from lm.evaluation.perplexity import FileScore

        for event in self.measure(sources):
            if isinstance(event, FileScore):
                scores.append(event)
                continue
            if watch:
                watch(event)
            yield from event.stretches
