"""A run that scores files of text: the model, its tokenizer, and the settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from cli.flags.loading import load_scored
from cli.flags.options import Given
from cli.perplexity.report import conditions
from lm.checkpoint import LoadedModel
from lm.config.data import DataConfig
from lm.config.evaluation import PerplexityConfig
from lm.config.hardware import HardwareConfig
from lm.evaluation.scorer import Scorer

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
    """

    run: Path
    given: Given
    loaded: LoadedModel
    data: DataConfig
    text: Scorer

    @classmethod
    def load(cls, run: Path, given: Given, *, data: DataConfig | None = None) -> LoadedScorer:
        """Load a run; files are split into documents as `data` says, or else as they were for training it."""
        config = PerplexityConfig(**given["perplexity"])
        model, loaded = load_scored(run, HardwareConfig(**given["hardware"]), instead=_ON_PAIRS)
        data = data or dataclasses.replace(loaded.config.data, supervised=False, **given["data"])
        return cls(run, given, loaded, data, Scorer.of(model, loaded.tokenizer, config, separator=data.separator))

    @property
    def conditions(self) -> dict[str, Any]:
        """How text is scored, and by which model, for reports."""
        text = self.text
        return conditions(self.run, self.loaded, context=text.context, stride=text.stride, every=text.every)
