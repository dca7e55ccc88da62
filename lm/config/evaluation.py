"""How texts and translations are scored, and attention is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.config.options import CheckedConfig, option

BleuTokenizer = Literal["13a", "intl", "char", "zh", "none"]
AttentionUnit = Literal["words", "tokens"]


@dataclass(frozen=True)
class PerplexityConfig(CheckedConfig):
    """How files are scored."""

    context: int | None = option(None, "Context window.", minimum=1, unit="TOKENS", default_text="the model's context")
    stride: int | None = option(
        None, "Tokens scored per window; fewer see more context.", minimum=1, unit="TOKENS", default_text="context / 2"
    )
    batch_size: int = option(16, "Windows per batch.", minimum=1)
    score_every: int = option(1, "Masked models: score every Nth token, an estimate.", minimum=1)


@dataclass(frozen=True)
class ScoringConfig(CheckedConfig):
    """How translations are scored."""

    tokenize: BleuTokenizer = option("13a", "Tokenizer of BLEU; none: already tokenized.")
    lowercase: bool = option(False, "Lowercase BLEU and chrF; TER always is.")
    resamples: int = option(1000, "Bootstrap resamples, for intervals and p; 0: none.", minimum=0, maximum=100_000)


@dataclass(frozen=True)
class AttentionConfig(CheckedConfig):
    """What is shown of attention weights."""

    layer: int | None = option(None, "Only layer N, from 1.", minimum=1, default_text="mean of all")
    head: int | None = option(None, "Only head N, from 1.", minimum=1, default_text="mean of all")
    unit: AttentionUnit = option("words", "Rows and columns.")
