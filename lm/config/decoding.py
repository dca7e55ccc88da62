"""How texts are drawn, searched for and translated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from lm.config.settings import Config, Count, Fraction, Natural, Requires, Seed
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
    """How tokens are drawn from the model's distribution, how many, and what ends a text."""

    temperature: Annotated[_Scale, "Temperature; 0: greedy."] = 0.8
    top_k: Annotated[Count | None, "Top-k: sample from the N most likely tokens."] = None
    top_p: Annotated[Fraction | None, "Top-p (nucleus) sampling: cumulative probability."] = None
    min_p: Annotated[Fraction | None, "Min-p: minimum ratio to the top probability."] = None
    typical_p: Annotated[Fraction | None, "Typical sampling: cumulative probability."] = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=1000), "Penalty on tokens in prompt or output; 1: off."] = 1.0
    presence_penalty: Annotated[_Penalty, "Subtracted once from the logits of generated tokens."] = 0.0
    frequency_penalty: Annotated[_Penalty, "Subtracted per occurrence of a generated token."] = 0.0
    no_repeat_ngram_size: Annotated[Count | None, "Never repeat an n-gram of N tokens."] = None
    logit_bias: Annotated[
        tuple[str, ...], "TOKEN=X: add X to the logit of a token (ID, or text of one token); -inf bans it. Repeatable."
    ] = ()
    stop: Annotated[tuple[str, ...], r"Stop before this string; \n is a newline. Repeatable."] = ()
    seed: Annotated[Seed | None, "Sampling seed; default random."] = None
    max_tokens: Annotated[Count, "Maximum tokens to generate."] = 200
    min_tokens: Annotated[Natural, "Ban the end-of-text token before N tokens."] = 0
    ignore_eos: Annotated[bool, "Continue after end-of-text and end-of-turn tokens."] = False
    token_healing: Annotated[bool, "Token healing: resample the prompt's last token."] = True

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise UsageError("stop cannot be empty")
        if self.min_tokens > self.max_tokens:
            raise UsageError(f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}")


@dataclass(frozen=True)
class BeamConfig(Config):
    """How the most likely texts are searched for."""

    beam: Annotated[_Beam | None, "Beam search with N hypotheses, instead of sampling."] = None
    length_penalty: Annotated[_Power, "Beam score: log-probability / length^X.", Requires("beam.beam")] = 1.0


@dataclass(frozen=True)
class TranslationConfig(Config):
    """How sentences are translated."""

    beam: Annotated[_Beam, "Beam size; 1: greedy."] = 5
    n_best: Annotated[Count, "Translations per line, best first."] = 1
    length_penalty: Annotated[_Power, "Score: log-probability / length^X."] = 1.0
    batch_tokens: Annotated[Count, "Source tokens per batch, with padding."] = 1024


@dataclass(frozen=True)
class FillConfig(Config):
    """How blanks are filled."""

    top_k: Annotated[Count, "Candidates per blank."] = 5
    batch_size: Annotated[Count, "Texts per batch."] = 16


@dataclass(frozen=True)
class ClassificationConfig(Config):
    """How texts are classified."""

    top_k: Annotated[Count | None, "Labels per text, most likely first; default 1, --json all."] = None
    batch_size: Annotated[Count, "Texts per batch (decoder: texts × labels)."] = 16
