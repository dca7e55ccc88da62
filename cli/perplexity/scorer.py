"""A run that scores files of text: model, tokenizer and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from cli.loading import load_scoring_model
from cli.options import Options
from cli.perplexity.report import scoring_conditions
from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig, WorkersConfig
from lm.data.batch import Batch
from lm.evaluation.batch_scoring import Nats, score_batch
from lm.evaluation.window_scorers import TextScorer
from lm.hardware import divide_threads
from lm.model.transformer import DecoderOnly
from lm.processes import ParallelMap, open_process_map

_ON_PAIRS = "measure it on pairs (--source, --target)"


@dataclasses.dataclass(frozen=True)
class LoadedScorer:
    """A loaded run with the settings to score files."""

    run: Path
    options: Options
    loaded: LoadedModel
    data: DataConfig
    """How files are split into documents."""
    text: TextScorer
    parallel_map: ParallelMap[Batch, list[Nats]] | None = None
    """Scores batches of examples in other processes."""

    @classmethod
    def load(cls, run: Path, options: Options, *, data: DataConfig | None = None) -> LoadedScorer:
        """Load a run; files are split into documents as `data` says, else as in training."""
        config = options.build(PerplexityConfig)
        model, loaded = load_scoring_model(run, options.build(HardwareConfig), instead=_ON_PAIRS)
        data = data or loaded.config.data.for_other_files(**options.values["data"])
        text = TextScorer.from_config(model, loaded.tokenizer, config)
        return cls(run, options, loaded, data, text)

    @contextmanager
    def shared(self, *, of_examples: bool = False) -> Iterator[LoadedScorer]:
        """Start the configured worker processes; yields a scorer that uses them."""
        processes = self.options.build(WorkersConfig).processes
        hardware = divide_threads(self.options.build(HardwareConfig), processes)
        options = self.options.with_values("hardware", threads=hardware.threads)
        prepare = partial(_build_worker, self.run, options, self.data, of_examples=of_examples)
        with open_process_map(prepare, processes) if processes > 1 else nullcontext() as parallel_map:
            if of_examples:
                yield dataclasses.replace(self, parallel_map=parallel_map)
            else:
                yield dataclasses.replace(self, text=dataclasses.replace(self.text, parallel_map=parallel_map))

    @property
    def conditions(self) -> dict[str, Any]:
        """Return how text is scored, and by which model, for reports."""
        text = self.text
        return scoring_conditions(
            self.run, self.loaded, context=text.context, stride=text.stride, score_every=text.score_every
        )


def _build_worker(run: Path, options: Options, data: DataConfig, *, of_examples: bool) -> Callable[[Any], list[Nats]]:
    """Load the run in a worker; returns its scoring function."""
    text = LoadedScorer.load(run, options, data=data).text
    if of_examples:
        assert isinstance(text.model, DecoderOnly)
        return partial(score_batch, text.model)
    return text.window_scorer.score
