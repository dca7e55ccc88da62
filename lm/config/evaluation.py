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
    """How files are scored."""

    context: Annotated[Count | None, "Context window, in tokens; default the model's context."] = None
    stride: Annotated[Count | None, "Tokens scored per window; fewer see more context; default context / 2."] = None
    batch_size: Annotated[Count, "Windows per batch."] = 16


@dataclass(frozen=True)
class ScoringConfig(Config):
    """How translations are scored."""

    tokenize: Annotated[BleuTokenizer, "Tokenizer of BLEU; none: already tokenized."] = "13a"
    lowercase: Annotated[bool, "Lowercase BLEU and chrF; TER always is."] = False
    resamples: Annotated[int, Meta(ge=0, le=100_000), "Bootstrap resamples, for intervals and p; 0: none."] = 1000


@dataclass(frozen=True)
class AttentionConfig(Config):
    """What is shown of attention weights."""

    layer: Annotated[Count | None, "Only layer N, from 1; default the mean of all."] = None
    head: Annotated[Count | None, "Only head N, from 1; default the mean of all."] = None
    unit: Annotated[AttentionUnit, "Rows and columns."] = "words"
