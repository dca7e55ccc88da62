"""A run that scores files of text: the model, its tokenizer, and the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cli.flags.loading import load_scoring_model
from cli.flags.options import ParsedOptions
from cli.perplexity.report import scoring_conditions
from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.config.workers import WorkersConfig
from lm.data.batch import Batch
from lm.evaluation.scorer import TextScorer
from lm.evaluation.scoring import Nats, score_batch
from lm.hardware import share_of
from lm.model.transformer import DecoderOnly
from lm.processes import Share, mapping

_ON_PAIRS = "measure it on pairs (--source, --target)"


@dataclasses.dataclass(frozen=True)
class LoadedScorer:
    """A loaded run with the settings to score files by.

    Attributes:
        run: the folder, as the user named it.
        given: the settings that the user gave.
        loaded: the model with its tokenizer and config.
        data: how files are split into documents.
        text: scores files of text.
        share: has batches of examples scored by other processes.
    """

    run: Path
    given: ParsedOptions
    loaded: LoadedModel
    data: DataConfig
    text: TextScorer
    parallel_map: Share[Batch, list[Nats]] | None = None

    @classmethod
    def load(cls, run: Path, given: ParsedOptions, *, data: DataConfig | None = None) -> LoadedScorer:
        """Load a run; files are split into documents as `data` says, or else as they were for training it."""
        config = PerplexityConfig(**given["perplexity"])
        model, loaded = load_scoring_model(run, HardwareConfig(**given["hardware"]), instead=_ON_PAIRS)
        if "perplexity__every" in given.environment and not model.config.is_masked:
            config = dataclasses.replace(config, every=1)
        data = data or loaded.config.data.for_other_files(**given["data"])
        return cls(run, given, loaded, data, TextScorer.of(model, loaded.tokenizer, config, separator=data.separator))

    def with_dtype(self, dtype: str) -> LoadedScorer:
        """The same run in another type of numbers."""
        return LoadedScorer.load(self.run, with_hardware(self.given, dtype=dtype), data=self.data)

    @contextmanager
    def shared(self, *, of_examples: bool = False) -> Iterator[LoadedScorer]:
        """This scorer, with batches shared out over as many processes as the settings say."""
        processes = WorkersConfig(**self.given["workers"]).processes
        if processes == 1:
            yield self
            return
        prepare = partial(
            _build_worker, self.run, divide_threads(self.given, processes), self.data, of_examples=of_examples
        )
        with mapping(prepare, processes) as parallel_map:
            if of_examples:
                yield dataclasses.replace(self, parallel_map=parallel_map)
            else:
                yield dataclasses.replace(self, text=dataclasses.replace(self.text, parallel_map=parallel_map))

    @property
    def conditions(self) -> dict[str, Any]:
        """How text is scored, and by which model, for reports."""
        text = self.text
        return scoring_conditions(self.run, self.loaded, context=text.context, stride=text.stride, every=text.every)


def divide_threads(given: ParsedOptions, processes: int) -> ParsedOptions:
    """The settings for each of so many processes, which has its share of the threads."""
    return with_hardware(given, threads=share_of(HardwareConfig(**given["hardware"]), processes).threads)


def with_hardware(given: ParsedOptions, **hardware: object) -> ParsedOptions:
    """The settings with some of the hardware's changed."""
    return ParsedOptions(
        {**given, "hardware": given["hardware"] | hardware}, given.environment, invocation=given.invocation
    )


def _build_worker(
    run: Path, given: ParsedOptions, data: DataConfig, *, of_examples: bool
) -> Callable[[Any], list[Nats]]:
    """What a process does that scores batches."""
    text = LoadedScorer.load(run, given, data=data).text
    if of_examples:
        assert isinstance(text.model, DecoderOnly)
        return partial(score_batch, text.model)
    return text.window_scorer.score
