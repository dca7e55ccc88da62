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

    context: int | None = option(None, "Tokens in a window [default: the model's context].", minimum=1)
    stride: int | None = option(
        None,
        "Tokens from one window to the next, and scored in each. Half of the context lets every token (but a "
        "document's first ones) see at least that much; the whole context is twice as fast and blinder; 1 is the "
        "slowest and shows each token a full context [default: half of the context].",
        minimum=1,
    )
    batch_size: int = option(16, "Windows scored together; changes the speed, not the result.", minimum=1)
    every: int = option(
        1,
        "Of a masked model, which reads a window for each token that it scores, score only every Nth token of a "
        "document: an estimate in an Nth of the time.",
        minimum=1,
    )


@dataclass(frozen=True)
class ScoringConfig(CheckedConfig):
    """How translations are scored."""

    tokenize: BleuTokenizer = option(
        "13a",
        "How BLEU tokenizes text: 13a as at WMT, intl by Unicode's classes, zh and char for scripts without "
        "spaces, none for text that is tokenized already.",
    )
    lowercase: bool = option(False, "Compare BLEU and chrF in lower case; TER always does.")
    resamples: int = option(
        1000,
        "Resamples of the bootstrap behind confidence intervals and p-values; 0 for none.",
        minimum=0,
        maximum=100_000,
    )


@dataclass(frozen=True)
class AttentionConfig(CheckedConfig):
    """What is shown of attention weights."""

    layer: int | None = option(None, "Only this layer, from 1 [default: the mean of all].", minimum=1)
    head: int | None = option(None, "Only this head, from 1 [default: the mean of all].", minimum=1)
    unit: AttentionUnit = option("words", "Rows and columns: words between spaces, or tokens.")
