"""How texts are drawn, searched for and translated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from lm.config.settings import Config, Count, Fraction, Natural, Seed
from lm.errors import UsageError

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "logit_bias")
"""Fields of `SamplingConfig` that change the model's own logits, and therefore count in greedy and beam search too."""

LENGTH_LIMITS = ("max_tokens", "ignore_eos")
"""Fields of `SamplingConfig` that limit the length of a continuation in beam search too."""

_Penalty = Annotated[float, Meta(ge=-1000, le=1000)]
_Scale = Annotated[float, Meta(ge=0, le=1000)]
_Power = Annotated[float, Meta(ge=0, le=10)]
_Beam = Annotated[int, Meta(ge=1, le=1024)]
"""Each hypothesis is a row of every step; translations get worse long before the limit."""


@dataclass(frozen=True)
class SamplingConfig(Config):
    r"""How tokens are drawn from the model's distribution, how many, and what ends a text.

    Settings:
        temperature: Temperature; 0: greedy.
        top_k: Top-k: sample from the N most likely tokens.
        top_p: Top-p (nucleus) sampling: cumulative probability.
        min_p: Min-p: minimum ratio to the top probability.
        typical_p: Typical sampling: cumulative probability.
        repetition_penalty: Penalty on tokens in prompt or output; 1: off.
        presence_penalty: Subtracted once from the logits of generated tokens.
        frequency_penalty: Subtracted per occurrence of a generated token.
        no_repeat_ngram_size: Never repeat an n-gram of N tokens.
        logit_bias: TOKEN=X: add X to the logit of a token (ID, or text of one token); -inf bans it. Repeatable.
        stop: Stop before this string; \n is a newline. Repeatable.
        seed: Sampling seed; default random.
        max_tokens: Maximum tokens to generate.
        min_tokens: Ban the end-of-text token before N tokens.
        ignore_eos: Continue after end-of-text and end-of-turn tokens.
        token_healing: Token healing: resample the prompt's last token.
    """

    temperature: _Scale = 0.8
    top_k: Count | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    no_repeat_ngram_size: Count | None = None
    logit_bias: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    seed: Seed | None = None
    max_tokens: Count = 200
    min_tokens: Natural = 0
    ignore_eos: bool = False
    token_healing: bool = True

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise UsageError("stop cannot be empty")
        if self.min_tokens > self.max_tokens:
            raise UsageError(f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}")


@dataclass(frozen=True)
class BeamConfig(Config):
    """How the most likely texts are searched for.

    Settings:
        beam: Beam search with N hypotheses, instead of sampling.
        length_penalty: Beam score: log-probability / length^X.
    """

    beam: _Beam | None = None
    length_penalty: Annotated[_Power, "beam.beam"] = 1.0


@dataclass(frozen=True)
class TranslationConfig(Config):
    """How sentences are translated.

    Settings:
        beam: Beam size; 1: greedy.
        n_best: Translations per line, best first.
        length_penalty: Score: log-probability / length^X.
        batch_tokens: Source tokens per batch, with padding.
    """

    beam: _Beam = 5
    n_best: Count = 1
    length_penalty: _Power = 1.0
    batch_tokens: Count = 1024


@dataclass(frozen=True)
class FillConfig(Config):
    """How blanks are filled.

    Settings:
        top_k: Candidates per blank.
        batch_size: Texts per batch.
    """

    top_k: Count = 5
    batch_size: Count = 16


@dataclass(frozen=True)
class ClassificationConfig(Config):
    """How texts are classified.

    Settings:
        top_k: Labels per text, most likely first; default 1, --json all.
        batch_size: Texts per batch (decoder: texts × labels).
    """

    top_k: Count | None = None
    batch_size: Count = 16
