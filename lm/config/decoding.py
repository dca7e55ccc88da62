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

    temperature: float = option(
        0.8, "Divides the logits: below 1 safer, above 1 wilder, 0 is greedy.", minimum=0, maximum=1000
    )
    top_k: int | None = option(None, "Draw from the N most likely tokens only.", minimum=1)
    top_p: float | None = option(
        None, "Draw from the fewest tokens that together have at least this probability.", minimum=0, maximum=1
    )
    min_p: float | None = option(
        None, "Draw from tokens at least this many times as likely as the likeliest.", minimum=0, maximum=1
    )
    typical: float | None = option(
        None,
        "Draw from the tokens nearest the expected surprisal that together have at least this probability.",
        minimum=0,
        maximum=1,
    )
    greedy: bool = option(
        False, "Always take the most likely token; biases and penalties count, the other flags do not."
    )
    repetition_penalty: float = option(
        1.0,
        "Divides the positive logits of tokens that occurred, in the prompt too, and multiplies negative ones; "
        "above 1 they become less likely.",
        minimum=0.01,
        maximum=1000,
    )
    presence_penalty: float = option(
        0.0, "Subtracted from the logits of tokens that were generated.", minimum=-1000, maximum=1000
    )
    frequency_penalty: float = option(
        0.0, "Subtracted from their logits each time they were generated.", minimum=-1000, maximum=1000
    )
    no_repeat_ngram: int | None = option(
        None, "Never repeat N tokens in a row, those of the prompt among them.", minimum=1
    )
    logit_bias: tuple[str, ...] = option(
        (),
        "TEXT=VALUE or ID=VALUE: add to the logit of a token, or of the last token of a text after the others; "
        "-inf bans it. Can be repeated.",
    )
    stop: tuple[str, ...] = option((), "End a text before this string. Can be repeated.")
    seed: int | None = option(
        None, "Seed of the draws; sample i is the same for every -n [default: a fresh one].", minimum=0
    )
    max_tokens: int = option(200, "Stop after this many tokens.", minimum=1)
    min_tokens: int = option(
        0, "Ban the end-of-text token until this many tokens are generated; stop strings still end a text.", minimum=0
    )
    ignore_eos: bool = option(
        False, "Continue after an end-of-text token, up to --max-tokens; the model starts a new document."
    )
    token_healing: bool = option(
        True, "Choose the tokens of the prompt's last word again, with what follows; subword tokenizers only."
    )

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

    beam: int | None = option(
        None,
        "Search for the most likely text, with this many candidates at a time, instead of drawing.",
        minimum=1,
        maximum=MAX_BEAM,
    )
    length_penalty: float = option(
        1.0,
        "With --beam: a text's score is its log-probability divided by its number of tokens to this power; "
        "0 favours short texts.",
        minimum=0,
        maximum=10,
    )


@dataclass(frozen=True)
class TranslationConfig(CheckedConfig):
    """How sentences are translated."""

    beam: int = option(
        5,
        "Search for the likeliest translation with this many candidates at a time; 1 is greedy.",
        minimum=1,
        maximum=MAX_BEAM,
    )
    n_best: int = option(1, "Translations of each line, best first.", minimum=1)
    length_penalty: float = option(
        1.0,
        "A translation's score is its log-probability divided by its number of tokens to this power; 0 favours short "
        "ones.",
        minimum=0,
        maximum=10,
    )
    coverage_penalty: float = option(
        0.0,
        "Weighs how much of the source a translation has paid no attention to, and is taken from its score.",
        minimum=0,
        maximum=100,
    )
    max_length_ratio: float = option(
        2.0, "Tokens that a translation may have for each token of its source.", minimum=0, maximum=1000
    )
    max_length_extra: int = option(10, "Tokens that it may have besides.", minimum=0)
    batch_tokens: int = option(
        1024, "Source tokens per batch, padding included; changes the speed, not the result.", minimum=1
    )
    read_ahead: int | None = option(
        None,
        "Lines read before the first of them is translated, for batches of equal length [default: 4096, but 1 from a "
        "terminal].",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length_ratio + self.max_length_extra < 1:
            raise UsageError("this leaves no room for a translation", settings=("max_length_ratio", "max_length_extra"))


@dataclass(frozen=True)
class FillConfig(CheckedConfig):
    """How blanks are filled."""

    top_k: int = option(5, "Show the N likeliest tokens for each blank.", minimum=1)
    batch_size: int = option(16, "Texts per batch; changes the speed, not the result.", minimum=1)


@dataclass(frozen=True)
class ClassificationConfig(CheckedConfig):
    """How texts are classified."""

    top_k: int | None = option(
        None, "Labels to print for each text, the likeliest first [default: 1, with --json all].", minimum=1
    )
    batch_size: int = option(
        16, "Texts (of a decoder: texts x labels) read together; changes the speed, not the result.", minimum=1
    )
