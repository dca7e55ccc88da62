"""The settings of using runs: how texts are drawn, translated, scored, served and exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lm.config.settings import DERIVED, Config, Count, Fraction, Natural, NonNegative, Seed
from lm.errors import UsageError

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "logit_bias")
"""Fields of `SamplingConfig` that change the model's own logits, and therefore count in greedy and beam search too."""

_TEXT_LIMIT = 200
LENGTH_LIMITS = ("max_tokens", "ignore_eos")
"""Fields of `SamplingConfig` that limit the length of a continuation in beam search too."""

_Penalty = Annotated[float, Meta(ge=-1000, le=1000)]
_Power = Annotated[float, Meta(ge=0, le=10)]
_Rows = Annotated[int, Meta(ge=1, le=1024)]
"""Of a decoding step, such as the hypotheses of beam search."""


@dataclass(frozen=True)
class SamplingConfig(Config):
    r"""How tokens are drawn from the model's distribution, how many, and what ends a text.

    Settings:
        temperature: Temperature; 0: greedy.
        top_k: Top-k: sample from the N most likely tokens; 0: from all.
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
        max_tokens: Maximum tokens to generate; default 200, in a chat the whole reply.
        min_tokens: Ban the end-of-text token before N tokens.
        ignore_eos: Continue after end-of-text and end-of-turn tokens.
        token_healing: Token healing: resample the prompt's last token.
    """

    temperature: NonNegative = 0.8
    top_k: Natural | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    no_repeat_ngram_size: Count | None = None
    logit_bias: tuple[str, ...] = ()
    stop: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    seed: Seed | None = None
    max_tokens: Count | None = None
    min_tokens: Natural = 0
    ignore_eos: bool = False
    token_healing: bool = True

    @property
    def text_limit(self) -> int:
        """Return the maximum number of tokens of a text."""
        return _TEXT_LIMIT if self.max_tokens is None else self.max_tokens


@dataclass(frozen=True)
class BeamConfig(Config):
    """How the most likely texts are searched for.

    Settings:
        beam: Beam search with N hypotheses, instead of sampling.
        length_penalty: Beam score: log-probability / length^X.
    """

    beam: _Rows | None = None
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

    beam: _Rows = 5
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


AttentionUnit = Literal["words", "tokens"]


@dataclass(frozen=True)
class PerplexityConfig(Config):
    """How files are scored.

    Settings:
        context: Context window, in tokens; default the model's context.
        stride: Tokens scored per window; fewer see more context; default context / 2.
        batch_size: Windows per batch.
        adapt: Dynamic evaluation: learn from each batch, after it is scored, at this learning rate; 0: off.
    """

    context: Count | None = None
    stride: Count | None = None
    batch_size: Count = 16
    adapt: NonNegative = 0.0


@dataclass(frozen=True)
class ScoringConfig(Config):
    """How translations are scored.

    Settings:
        tokenize: Tokenizer of BLEU; none: already tokenized; default 13a, but zh or char without spaces between words.
        lowercase: Lowercase BLEU and chrF; TER always is.
        resamples: Bootstrap resamples, for intervals and p; 0: none.
    """

    tokenize: Literal["13a", "intl", "char", "zh", "none"] | None = None
    lowercase: bool = False
    resamples: Natural = 1000


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


ExportFormat = Literal["huggingface", "peft", "gguf", "ctranslate2"]
ExportDtype = Literal["float32", "float16", "bfloat16", "q8_0", "int16", "int8", "int8_float16", "int8_bfloat16"]


DTYPES = {
    "gguf": ("float32", "float16", "bfloat16", "q8_0"),
    "ctranslate2": ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16"),
}
"""Dtypes that matrices can have, the default first; other formats keep the run's."""


@dataclass(frozen=True)
class ExportConfig(Config):
    """The format that a run is exported to, and the dtype of its matrices.

    Settings:
        to: Target system; peft: adapters alone.
        type: Dtype of matrices, for gguf and ctranslate2; default float32.
    """

    to: ExportFormat = "huggingface"
    type: ExportDtype = DERIVED

    def __post_init__(self) -> None:
        dtypes = DTYPES.get(self.to, ())
        if self.type is None and dtypes:
            object.__setattr__(self, "type", dtypes[0])
        if self.type is not None and self.type not in dtypes:
            raise UsageError(f"type: {self.to} has {', '.join(dtypes) or 'the dtype of the run'}, not {self.type}")


@dataclass(frozen=True)
class ServerConfig(Config):
    """Where the server listens, and its limits.

    Settings:
        host: Address to listen on; non-loopback needs --token.
        port: Port; 0: any free one.
        token: Bearer token required from clients; default none.
        cors: Allowed CORS origin; * for all. Repeatable.
        batch_size: Maximum samples per decode batch, per model.
        max_requests: Maximum waiting requests per model; more get 429.
        max_samples: Maximum samples per request: prompts × n.
        max_length: Maximum tokens of a prompt and its completion.
        max_body: Maximum size of a request body, in bytes.
        timeout: Time limit of a request, including waiting, in seconds.
        drain: Time limit of running requests at shutdown, in seconds.
        prefill_chunk: Prompt tokens prefilled between two decode steps.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    token: Annotated[str, Meta(pattern="^[!-~]([ -~]*[!-~])?$")] | None = None
    cors: tuple[str, ...] = ()
    batch_size: _Rows = 32
    max_requests: Count = 64
    max_samples: _Rows = 32
    max_length: Count = 8192
    max_body: Count = 1 << 20
    timeout: NonNegative = 600.0
    drain: NonNegative = 30.0
    prefill_chunk: Count = 256
