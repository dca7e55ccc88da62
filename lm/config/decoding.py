"""How texts are drawn, searched for and translated."""

from __future__ import annotations

from dataclasses import dataclass

from lm.config.options import CheckedConfig, option
from lm.errors import UsageError

MAX_BEAM = 1024  # each candidate is a row of every step; translations get worse long before

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram", "logit_bias")
"""Fields of `SamplingConfig` that change the model's own logits, and therefore count in greedy and beam search too."""

LENGTH_LIMITS = ("max_tokens", "min_tokens", "ignore_eos")
"""Fields of `SamplingConfig` that limit the length of a continuation."""


@dataclass(frozen=True)
class SamplingConfig(CheckedConfig):
    """How tokens are drawn from the model's distribution, how many, and what ends a text."""

    temperature: float = option(0.8, "Temperature; 0: greedy.", minimum=0, maximum=1000)
    top_k: int | None = option(None, "Top-k: sample from the N most likely tokens.", minimum=1)
    top_p: float | None = option(
        None, "Top-p (nucleus) sampling: cumulative probability.", minimum=0, maximum=1, unit="P"
    )
    min_p: float | None = option(None, "Min-p: minimum ratio to the top probability.", minimum=0, maximum=1, unit="P")
    typical: float | None = option(None, "Typical sampling: cumulative probability.", minimum=0, maximum=1, unit="P")
    greedy: bool = option(False, "Greedy decoding; biases and penalties still apply.")
    repetition_penalty: float = option(
        1.0, "Penalty on tokens in prompt or output; 1: off.", minimum=0.01, maximum=1000
    )
    presence_penalty: float = option(
        0.0, "Subtracted once from the logits of generated tokens.", minimum=-1000, maximum=1000
    )
    frequency_penalty: float = option(
        0.0, "Subtracted per occurrence of a generated token.", minimum=-1000, maximum=1000
    )
    no_repeat_ngram: int | None = option(None, "Never repeat an n-gram of N tokens.", minimum=1)
    logit_bias: tuple[str, ...] = option((), "Add to the logit of a token (ID or text); -inf bans it.", unit="TOKEN=X")
    stop: tuple[str, ...] = option((), "Stop before this string.")
    seed: int | None = option(None, "Sampling seed.", minimum=0, default_text="random")
    max_tokens: int = option(200, "Maximum tokens to generate.", minimum=1)
    min_tokens: int = option(0, "Ban the end-of-text token before N tokens.", minimum=0)
    ignore_eos: bool = option(False, "Continue after end-of-text and end-of-turn tokens.")
    token_healing: bool = option(True, "Token healing: resample the prompt's last word.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise UsageError("stop cannot be empty", settings=("stop",))
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}",
                settings=("min_tokens", "max_tokens"),
            )


@dataclass(frozen=True)
class BeamConfig(CheckedConfig):
    """How the most likely texts are searched for."""

    beam: int | None = option(None, "Beam search with N hypotheses, instead of sampling.", minimum=1, maximum=MAX_BEAM)
    length_penalty: float = option(
        1.0, "Beam score: log-probability / length^X.", minimum=0, maximum=10, requires="beam.beam"
    )


@dataclass(frozen=True)
class TranslationConfig(CheckedConfig):
    """How sentences are translated."""

    beam: int = option(5, "Beam size; 1: greedy.", minimum=1, maximum=MAX_BEAM)
    n_best: int = option(1, "Translations per line, best first.", minimum=1)
    length_penalty: float = option(1.0, "Score: log-probability / length^X.", minimum=0, maximum=10)
    coverage_penalty: float = option(0.0, "Penalty on unattended source words.", minimum=0, maximum=100)
    max_length_ratio: float = option(2.0, "Maximum target tokens per source token.", minimum=0, maximum=1000)
    max_length_extra: int = option(10, "Further target tokens.", minimum=0, unit="TOKENS")
    batch_tokens: int = option(1024, "Source tokens per batch, with padding.", minimum=1, unit="TOKENS")
    read_ahead: int | None = option(
        None, "Lines read ahead, to batch by length.", minimum=1, unit="LINES", default_text="4096; terminal 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length_ratio + self.max_length_extra < 1:
            raise UsageError("this leaves no room for a translation", settings=("max_length_ratio", "max_length_extra"))


@dataclass(frozen=True)
class FillConfig(CheckedConfig):
    """How blanks are filled."""

    top_k: int = option(5, "Candidates per blank.", minimum=1)
    batch_size: int = option(16, "Texts per batch.", minimum=1)


@dataclass(frozen=True)
class ClassificationConfig(CheckedConfig):
    """How texts are classified."""

    top_k: int | None = option(None, "Labels per text, most likely first.", minimum=1, default_text="1; --json all")
    batch_size: int = option(16, "Texts per batch (decoder: texts × labels).", minimum=1)
