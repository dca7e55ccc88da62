"""What a run is: frozen dataclasses that check themselves. Imports no torch, so that help is instant."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lm import durations, options
from lm.errors import UsageError
from lm.options import Checked, option

FORMAT_VERSION = 1
END_OF_TEXT = "<|endoftext|>"
LANGUAGE = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*"
"""A code of a language."""
IGNORED = -100  # as a target: nothing is to be predicted here
MOST_TOKENS = 1 << 20  # in a vocabulary that is trained here: four times the largest in common use
WIDEST_BEAM = 1024  # each candidate is a row of every step; translations get worse long before

Positions = Literal["learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "none"]
Norm = Literal["layernorm", "rmsnorm"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]
Schedule = Literal["cosine", "linear", "inverse-sqrt", "wsd", "constant"]
Criterion = Literal["loss", "bleu"]
OptimizerKind = Literal["adamw", "muon"]
TokenizerKind = Literal["bpe", "char", "byte"]
Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16"]
BleuTokenizer = Literal["13a", "intl", "char", "zh", "none"]
AttentionUnit = Literal["words", "tokens"]


@dataclass(frozen=True)
class ModelConfig(Checked):
    """A stack of blocks. With `n_encoder_layers` it is an encoder-decoder, without a decoder-only model."""

    vocab_size: int = 256
    source_vocab_size: int | None = None
    context_length: int = option(
        256, "Longest sequence the model is trained on, in tokens.", minimum=1, flag="--context"
    )
    d_model: int = option(256, "Width of the residual stream.", minimum=1)
    n_layers: int = option(4, "Blocks in the decoder.", minimum=1)
    n_encoder_layers: int = option(0, "Blocks in the encoder; 0 makes a decoder-only model.", minimum=0)
    n_heads: int = option(4, "Attention heads; they divide d_model.", minimum=1)
    n_kv_heads: int | None = option(
        None, "Key/value heads, shared by groups of query heads [default: n_heads].", minimum=1
    )
    d_ff: int | None = option(
        None, "Width of the feed-forward layer [default: 4 d_model; 8/3 d_model for swiglu].", minimum=1
    )
    positions: Positions = option(
        "rotary", "How positions are encoded; learned ones end at the context, the others go on."
    )
    rope_base: float = option(10_000.0, "Base of the rotary frequencies.", minimum=1)
    norm: Norm = option("rmsnorm", "Kind of normalisation.")
    norm_position: NormPosition = option("pre", "Normalise before each sublayer, or after adding its output.")
    norm_eps: float = option(1e-5, "Added to the variance in normalisation.", minimum=0)
    activation: Activation = option("swiglu", "Activation of the feed-forward layer.")
    qk_norm: bool = option(False, "Normalise queries and keys (RMSNorm per head).")
    bias: bool = option(False, "Give linear layers and LayerNorms a bias.")
    dropout: float = option(0.0, "Dropped share of embeddings and sublayer outputs.", minimum=0, maximum=0.99)
    attention_dropout: float | None = option(
        None, "Dropped share of attention weights [default: as --dropout].", minimum=0, maximum=0.99
    )
    tie_embeddings: bool = option(True, "Use the token embedding as the output layer too.")
    scale_embeddings: bool = option(False, "Multiply embeddings by the square root of d_model.")
    init_std: float | None = option(
        None,
        "Standard deviation of the initial weights [default: 0.02 at GPT-2's width of 768, growing as 1/√d_model].",
        minimum=0,
    )
    zero_init: bool = option(False, "Start the outputs of sublayers, and an untied output layer, at zero.")
    softcap: float = option(
        0.0, "Keep logits within this of zero, smoothly; Gemma 2 has 30. 0 leaves them alone.", minimum=0, maximum=1000
    )
    value_residual: bool = option(
        False, "Mix the values of self-attention with those of the first layer, in learned shares."
    )
    embedding_shortcut: bool = option(False, "Mix the embedding into what each block reads, in learned shares.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size < 1:
            raise UsageError(f"vocab_size must be at least 1, not {self.vocab_size}")
        if self.d_model % self.n_heads:
            raise UsageError(f"n_heads {self.n_heads} does not divide d_model {self.d_model} (--n-heads, --d-model)")
        if self.n_heads % self.kv_heads:
            raise UsageError(f"n_kv_heads {self.kv_heads} does not divide n_heads {self.n_heads} (--n-kv-heads)")
        if self.positions == "rotary" and self.head_size % 2:
            raise UsageError(f"rotary positions need an even head size, not {self.head_size} (--d-model / --n-heads)")
        if self.positions == "alibi" and self.is_encoder_decoder:
            raise UsageError("alibi positions are for decoder-only models; choose others (--positions)")
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise UsageError(f"sinusoidal positions need an even d_model, not {self.d_model} (--d-model)")
        if self.source_vocab_size is not None and not self.is_encoder_decoder:
            raise UsageError("source_vocab_size needs an encoder (--n-encoder-layers)")

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a source as well."""
        return self.n_encoder_layers > 0

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Key/value heads: as many as query heads unless set."""
        return self.n_kv_heads or self.n_heads

    @property
    def dropped_attention(self) -> float:
        """Dropped share of attention weights: as of everything else unless set."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def initial_std(self) -> float:
        """Standard deviation of the initial weights: as set, else 0.02·√(768 / d_model)."""
        return 0.02 * math.sqrt(768 / self.d_model) if self.init_std is None else self.init_std

    @property
    def feed_forward_width(self) -> int:
        """Hidden width of the feed-forward layer: 4 d_model unless set; for SwiGLU 8/3 d_model, to a multiple of 32."""
        if self.d_ff is not None:
            return self.d_ff
        return -(-8 * self.d_model // (3 * 32)) * 32 if self.activation == "swiglu" else 4 * self.d_model


@dataclass(frozen=True)
class TokenizerConfig(Checked):
    """A tokenizer to be trained."""

    kind: TokenizerKind = option("bpe", "Byte-level BPE, single characters, or single bytes.")
    vocab_size: int = option(
        4096, "Size of a BPE vocabulary, special tokens included.", minimum=257, maximum=MOST_TOKENS
    )
    min_frequency: int = option(2, "How often a pair must occur to be merged.", minimum=1, maximum=1 << 31)


@dataclass(frozen=True)
class DataConfig(Checked):
    """How a corpus becomes tokens."""

    validation: str = option(
        "0.1",
        "Held out for validation: a fraction, or files. A fraction is taken of the documents (duplicates "
        "stay together), or of the end of the text where there are fewer than 100 documents.",
        may_name_files=True,
    )
    separator: str = option(END_OF_TEXT, "A line that holds only this ends a document within a text file.")
    field: str = option(
        "text",
        "What holds the text in each line of JSON Lines files (.jsonl, .ndjson; stdin too, if its first line is so).",
    )
    supervised: bool = option(
        False,
        "Each line of the JSON Lines is an example, {prompt, completion} or {text, label}; only the completion is "
        "learned, or the label, which follows the text on a line of its own.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.supervised and self.field != DataConfig.field:
            raise UsageError("--field names the text of documents; the fields of --supervised examples are fixed")


@dataclass(frozen=True)
class ParallelConfig(Checked):
    """How pairs of sentences, a source and its translation, become tokens."""

    bidirectional: bool = option(
        False, "Learn both directions in one model; a tag before the source, such as <2de>, says which is wanted."
    )
    source_language: str | None = option(None, "Language of the sources [default: from file names, as in train.en].")
    target_language: str | None = option(None, "Language of the targets [default: from file names, as in train.de].")
    source_field: str = option("source", "What holds the source in each line of JSON Lines.")
    target_field: str = option("target", "What holds the target in each line of JSON Lines.")
    separate_vocabularies: bool = option(False, "Train a tokenizer for each language, instead of one on both.")
    max_length: int = option(256, "Leave out pairs with more tokens than this on a side.", minimum=1)
    max_ratio: float = option(
        9.0, "Leave out pairs of which one side has more than this many times the tokens of the other.", minimum=1
    )
    bpe_dropout: float = option(
        0.0,
        "Probability of leaving out each merge of the BPE, so that words are seen in several pieces.",
        minimum=0,
        maximum=1,
    )
    bpe_dropout_until: float = option(1.0, "Share of the run after which BPE dropout ends.", minimum=0, maximum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and self.separate_vocabularies:
            raise UsageError(
                "both directions share one vocabulary: leave out --separate-vocabularies or --bidirectional"
            )
        for name in ("source_language", "target_language"):
            language = getattr(self, name)
            if language is not None and not re.fullmatch(LANGUAGE, language):
                raise UsageError(f"{name} is a code such as de or pt-BR, not {language!r} (--{name.replace('_', '-')})")


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """How a model is trained. Exactly one of steps, epochs, tokens and budget says for how long."""

    steps: int | None = option(None, "Train for this many optimizer steps.", minimum=1)
    epochs: float | None = option(None, "Train for this many passes over the training split.", minimum=0)
    tokens: int | None = option(None, "Train on this many tokens.", minimum=1)
    budget: str | None = option(
        None,
        "Take this long from start to end (90s, 10m, 1h30m). Without a preset, vocabulary, size and batch are chosen "
        "for the time, the text (or the pairs) and the machine.",
    )
    batch_size: int = option(32, "Sequences in one optimizer step.", minimum=1)
    batch_tokens: int | None = option(None, "Tokens in one optimizer step, instead of sequences.", minimum=1)
    batch_warmup: int = option(
        0, "Steps over which the batch grows from a quarter of its sequences to all of them.", minimum=0
    )
    micro_batch_size: int | None = option(
        None, "Sequences in one pass through the model; smaller ones accumulate [default: all at once].", minimum=1
    )
    learning_rate: float = option(1e-3, "Peak learning rate.", minimum=0)
    schedule: Schedule = option("cosine", "Shape of the learning rate after warm-up.")
    warmup_steps: int = option(50, "Steps over which the learning rate rises from zero.", minimum=0)
    final_learning_rate: float = option(0.1, "Where the schedule ends, as a share of the peak.", minimum=0, maximum=1)
    decay_fraction: float = option(0.2, "Share of the steps that the wsd schedule decays over.", minimum=0, maximum=1)
    optimizer: OptimizerKind = option(
        "adamw", "AdamW for all weights, or Muon for the matrices of the blocks and AdamW for the rest."
    )
    beta1: float = option(0.9, "AdamW: decay of the mean gradient.", minimum=0, maximum=0.9999)
    beta2: float = option(0.95, "AdamW: decay of the mean squared gradient.", minimum=0, maximum=0.99999)
    epsilon: float = option(1e-8, "AdamW: added to the denominator.", minimum=0)
    weight_decay: float = option(0.1, "Decay of matrices; vectors are never decayed.", minimum=0)
    clip: float = option(1.0, "Largest norm of the gradient; 0 leaves it alone.", minimum=0)
    evaluate_every: int = option(
        250, "Steps between evaluations on the whole validation split; 0 only at the end.", minimum=0
    )
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints; 0 only at the end [default: at each evaluation].", minimum=0
    )
    keep: int = option(3, "Checkpoints kept: this many of the latest, and the best; 0 keeps all.", minimum=0)
    patience: int | None = option(
        None, "Stop when this many evaluations in a row have brought no lower loss [default: never].", minimum=1
    )
    label_smoothing: float = option(
        0.0, "Share of each target spread over the vocabulary; never when evaluating.", minimum=0, maximum=0.99
    )
    r_drop: float = option(
        0.0,
        "R-Drop: each batch goes through twice with other dropout, and this weighs how far the two may differ; "
        "a step takes twice as long.",
        minimum=0,
    )
    ema: float = option(
        0.0,
        "Decay of a moving average of the weights, which is then what is evaluated and saved; 0 keeps none.",
        minimum=0,
        maximum=0.99999,
    )
    best_by: Criterion = option(
        "loss", "What makes a checkpoint the best, and counts for --patience: the validation loss, or BLEU."
    )
    bleu_sentences: int = option(
        2000, "Sentences of the validation split that are translated at each evaluation, for BLEU.", minimum=0
    )
    sample: tuple[str, ...] = option(
        (), "Continue (or translate) this after each evaluation, to see the model learn. Can be repeated."
    )
    compile: bool = option(
        False, "Compile the model with torch.compile, which pays off in long runs; a resumed run may change it."
    )
    seed: int = option(0, "Seed of the initial weights, the data order and dropout.", minimum=0, maximum=2**64 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise UsageError(f"give only one of {', '.join('--' + name for name in lengths)}")
        if self.epochs == 0:
            raise UsageError("epochs must be more than 0 (--epochs)")
        if self.budget is not None:
            try:
                durations.seconds(self.budget)
            except UsageError as error:
                raise UsageError(f"{error} (--budget)") from None
            if self.schedule != "wsd" or self.decay_fraction == 1:
                raise UsageError(
                    "with a budget the decay of the learning rate begins when the clock says so, which takes the "
                    "schedule wsd and a --decay-fraction below 1 (--schedule)"
                )

    @property
    def passes(self) -> int:
        """How often each batch goes through the model."""
        return 2 if self.r_drop else 1


LENGTHS = ("steps", "epochs", "tokens", "budget")


@dataclass(frozen=True)
class SamplingConfig(Checked):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise UsageError("stop cannot be empty (--stop)")


@dataclass(frozen=True)
class BeamConfig(Checked):
    """How the most likely texts are searched for."""

    beam: int | None = option(
        None,
        "Search for the most likely text, with this many candidates at a time, instead of drawing.",
        minimum=1,
        maximum=WIDEST_BEAM,
    )
    length_penalty: float = option(
        1.0,
        "With --beam: a text's score is its log-probability divided by its number of tokens to this power; "
        "0 favours short texts.",
        minimum=0,
        maximum=10,
    )


@dataclass(frozen=True)
class TranslationConfig(Checked):
    """How sentences are translated."""

    beam: int = option(
        5,
        "Search for the likeliest translation with this many candidates at a time; 1 is greedy.",
        minimum=1,
        maximum=WIDEST_BEAM,
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
        1024, "Source tokens, padding included, translated side by side; changes the speed, not the result.", minimum=1
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
            raise UsageError("this leaves no room for a translation (--max-length-ratio, --max-length-extra)")


@dataclass(frozen=True)
class PerplexityConfig(Checked):
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


@dataclass(frozen=True)
class ScoringConfig(Checked):
    """How translations are scored."""

    tokenize: BleuTokenizer = option(
        "13a",
        "How BLEU parts text into words: 13a as at WMT, intl by Unicode's classes, zh and char for scripts without "
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
class AttentionConfig(Checked):
    """What is shown of attention weights."""

    layer: int | None = option(None, "Only this layer, from 1 [default: the mean of all].", minimum=1)
    head: int | None = option(None, "Only this head, from 1 [default: the mean of all].", minimum=1)
    unit: AttentionUnit = option("words", "Rows and columns: words between spaces, or tokens.")


@dataclass(frozen=True)
class HardwareConfig(Checked):
    """What to run on; `auto` is resolved by looking at the machine."""

    device: Device = option("auto", "Where to run: auto takes a GPU if there is one.")
    dtype: DType = option(
        "auto",
        "Arithmetic of the matrix products; auto trains in bfloat16 where that is faster and is float32 otherwise.",
    )
    threads: int | None = option(None, "CPU threads [default: one per core].", minimum=1, maximum=1024)


@dataclass(frozen=True)
class Plan:
    """What was decided by looking at the machine and the data: written before the first step, only read afterwards.

    Attributes:
        device: where the run trains.
        dtype: arithmetic of the matrix products.
        threads: CPU threads.
        optimizer_dtype: arithmetic of Muon's products.
        steps: optimizer steps in all; with a deadline, about so many.
        data: folder of the token shards.
        data_key: hash of what the tokens were made from.
        deadline: seconds that a run under a budget has, until the decay of its learning rate has begun: from then on
            the steps are exact, and there is none.
        decay_step: of a run under a budget, the step after which its learning rate falls.
        decay_share: the share of the peak that it falls from.
    """

    device: str
    dtype: str
    threads: int
    steps: int
    data: str
    data_key: str
    deadline: float | None = None
    decay_step: int | None = None
    decay_share: float = 1.0
    optimizer_dtype: str = "bfloat16"

    @property
    def falls_from(self) -> tuple[int, float] | None:
        """The step after which the learning rate falls, and from what share of its peak, where a clock decided that."""
        return None if self.decay_step is None else (self.decay_step, self.decay_share)


@dataclass(frozen=True)
class RunConfig:
    """Everything that defines a run; `config.json` is this, as JSON."""

    model: ModelConfig = ModelConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    parallel: ParallelConfig = ParallelConfig()
    training: TrainingConfig = TrainingConfig()
    hardware: HardwareConfig = HardwareConfig()
    preset: str | None = None
    plan: Plan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the format's version in front."""
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> RunConfig:
        """The inverse of `to_dict`; `where` names the file in messages."""
        if not isinstance(values, Mapping):
            raise UsageError(f"{where}: must be names with values, not {values!r}")
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise UsageError(f"{where}: format version {version} is not {FORMAT_VERSION}, the one this lm reads")
        parts: dict[str, Any] = {
            name: options.build(kind, values.get(name, {}), where=f"{where}, {name}") for name, kind in SECTIONS.items()
        }
        plan = values.get("plan")
        return cls(
            **parts,
            preset=values.get("preset"),
            plan=plan if plan is None else options.build(Plan, plan, where=f"{where}, plan"),
        )


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "parallel": ParallelConfig,
    "training": TrainingConfig,
    "hardware": HardwareConfig,
}
