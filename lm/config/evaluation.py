"""How texts and translations are scored, and attention is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import Config, Count

BleuTokenizer = Literal["13a", "intl", "char", "zh", "none"]
AttentionUnit = Literal["words", "tokens"]


@dataclass(frozen=True)
class PerplexityConfig(Config):
    """How files are scored.

    Settings:
        context: Context window, in tokens; default the model's context.
        stride: Tokens scored per window; fewer see more context; default context / 2.
        batch_size: Windows per batch.
    """

    context: Count | None = None
    stride: Count | None = None
    batch_size: Count = 16


@dataclass(frozen=True)
class ScoringConfig(Config):
    """How translations are scored.

    Settings:
        tokenize: Tokenizer of BLEU; none: already tokenized.
        lowercase: Lowercase BLEU and chrF; TER always is.
        resamples: Bootstrap resamples, for intervals and p; 0: none.
    """

    tokenize: BleuTokenizer = "13a"
    lowercase: bool = False
    resamples: Annotated[int, Meta(ge=0, le=100_000)] = 1000


@dataclass(frozen=True)
class AttentionConfig(Config):
    """What is shown of attention weights.

    Settings:
        layer: Only layer N, from 1; default the mean of all.
        head: Only head N, from 1; default the mean of all.
        unit: Rows and columns.
    """

    layer: Count | None = None
    head: Count | None = None
    unit: AttentionUnit = "words"
