"""The settings of a run, by section; the plan resolved from them, and the configuration that holds all."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from lm.config.model import ModelConfig
from lm.config.settings import (
    DERIVED,
    LENGTHS,
    Config,
    Count,
    Fraction,
    LargeCount,
    Natural,
    NonNegative,
    Positive,
    Rate,
    Seed,
    build_config,
    list_all_settings,
)
from lm.errors import UsageError

END_OF_TEXT = "<|endoftext|>"
MASK = "[MASK]"  # stands where a token is to be guessed

TokenizerKind = Literal["bpe", "char", "byte"]


@dataclass(frozen=True)
class TokenizerConfig(Config):
    """A tokenizer to be trained.

    Settings:
        kind: Byte-level BPE, characters or bytes.
        vocab_size: BPE vocabulary size.
        merges: BPE merges within words, or only within characters.
        inline_casing: BPE: lower case, with marks for capitals.
    """

    kind: TokenizerKind = "bpe"
    vocab_size: Annotated[int, Meta(ge=257, le=1 << 20), "tokenizer.kind=bpe"] = 4096
    merges: Annotated[Literal["words", "characters"], "tokenizer.kind=bpe"] = "words"
    inline_casing: Annotated[bool, "tokenizer.kind=bpe"] = False


LANGUAGE_PATTERN = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*"
"""A pattern of language codes."""
IGNORE_INDEX = -100  # as a target: nothing is to be predicted here

DataKind = Literal["text", "examples", "conversations", "pairs"]
"""What records are; it follows from the columns of their files."""
Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet"]
_Language = Annotated[str, Meta(pattern=f"^{LANGUAGE_PATTERN}$")]


@dataclass(frozen=True)
class FilesConfig(Config):
    """Which files are read, and how: what holds of files, while `DataConfig` is about the text in them.

    Settings:
        format: Format of all files; default from the file name.
        encoding: Encoding of files not in UTF-8.
        include: Read only files that match, as '*.py'. Repeatable.
        exclude: Skip files and folders that match. Repeatable.
        skip_malformed: Skip malformed rows and unreadable files, and count them.
        header: CSV, TSV: the first row names the columns.
    """

    format: Format | None = None
    encoding: str = "utf-8"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skip_malformed: bool = False
    header: bool = True

    def __post_init__(self) -> None:
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError) as error:
            raise UsageError(f"encoding: {error}") from None


@dataclass(frozen=True)
class DataConfig(Config):
    """How a corpus becomes tokens.

    Settings:
        validation: Fraction to hold out, or held-out files; default a tenth, less of over 1 MB.
        separator: Line that ends a document.
        text_column: Text column: name, names or number; default text, or the run's.
        label_column: Label column: labels are learned; default the run's.
        source_column: Source column; default source, or the run's.
        target_column: Target column; default target, or the run's.
    """

    validation: str | None = None
    separator: str = END_OF_TEXT
    text_column: str | None = None
    label_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None

    def for_other_files(self, **values: Any) -> DataConfig:
        """Return settings for files that the run was not trained on; those of its columns that were numbers are gone.

        With a text column and without other columns, only text is read.
        """
        columns = [name for name in self.__dataclass_fields__ if name.endswith("_column")]
        own = {name: getattr(self, name) for name in columns if "text_column" not in values}
        named = {name: column for name, column in own.items() if not str(column).isdecimal()}
        return replace(self, **{**dict.fromkeys(columns), **named, **values})


@dataclass(frozen=True)
class ParallelTextConfig(Config):
    """How pairs of sentences, a source and its translation, become tokens.

    Settings:
        bidirectional: Train both directions in one model.
        source_language: Source language; default the suffix, as in train.en.
        target_language: Target language; default the suffix, as in train.de.
        separate_vocabularies: Train a tokenizer per language.
        max_length: Drop longer sentence pairs, in tokens.
        max_ratio: Drop sentence pairs with a larger length ratio.
        bpe_dropout: BPE-dropout.
        bpe_dropout_until: Fraction of the run with BPE-dropout.
    """

    bidirectional: bool = False
    source_language: _Language | None = None
    target_language: _Language | None = None
    separate_vocabularies: bool = False
    max_length: Count = 256
    max_ratio: Positive = 9.0
    bpe_dropout: Fraction = 0.0
    bpe_dropout_until: Annotated[Fraction, "parallel.bpe_dropout"] = 1.0

    def __post_init__(self) -> None:
        if self.bidirectional and self.separate_vocabularies:
            raise UsageError("bidirectional models have no separate_vocabularies")


_Decay = Annotated[float, Meta(ge=0, le=0.99999)]
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True)
class TrainingConfig(Config):
    """How a model is trained. Exactly one of steps, epochs, tokens and budget says for how long.

    Settings:
        steps: Training length in optimizer steps.
        epochs: Training length in passes over the training split.
        tokens: Training length in tokens.
        budget: Training time, such as 10m or 1h30m; default by the corpus.
        batch_size: Sequences per step.
        batch_tokens: Tokens per step, instead of batch_size.
        micro_batch_size: Gradient accumulation: sequences per pass; default all.
        learning_rate: Peak learning rate: near 0.02 for Muon, 0.001 for AdamW.
        schedule: Learning-rate schedule.
        warmup_steps: Learning-rate warm-up.
        final_learning_rate_fraction: Final learning rate / peak.
        decay_fraction: Schedule wsd: decay fraction.
        optimizer: Optimizer; muon: AdamW for embeddings and vectors.
        beta1: AdamW: β1.
        beta2: AdamW: β2.
        epsilon: AdamW: ε.
        weight_decay: Weight decay of matrices.
        clip: Gradient clipping: maximum norm; 0: off.
        evaluate_every: Evaluation interval in steps; 0: only at the end.
        checkpoint_every: Checkpoint interval; 0: at the end; default evaluate_every.
        keep_checkpoints: Keep the latest N checkpoints and the best; 0: all.
        patience: Stop after N evaluations without improvement.
        decay_patience: Start the decay after N evaluations without improvement.
        label_smoothing: Label smoothing.
        r_drop: R-Drop: weight of the KL term; 0: off.
        teacher (RUN): Distillation: learn this run's predictions too. Repeatable: their mean.
        distillation_weight: Distillation: weight of the teacher's predictions, 0 to 1.
        distillation_temperature: Distillation: softmax temperature.
        expert_balance: MoE: weight of the load-balancing loss.
        ema: EMA decay; averaged weights are evaluated and saved; 0: off.
        best_by: Criterion of the best checkpoint.
        bleu_sentences: Sentences translated per evaluation, for BLEU.
        sample: Prompt to continue at each evaluation. Repeatable.
        masking_rate: Masked models: masking rate.
        compile: Use torch.compile; pays off in long runs.
        gradient_checkpointing: Recompute activations: less memory, slower.
        tensorboard: Write TensorBoard files.
        seed: Seed of weights, data order and dropout.
    """

    steps: LargeCount | None = None
    epochs: Positive | None = None
    tokens: LargeCount | None = None
    budget: str | None = None
    batch_size: Count = 32
    batch_tokens: Count | None = None
    micro_batch_size: Count | None = None
    learning_rate: NonNegative = 1e-3
    schedule: Literal["cosine", "linear", "inverse-sqrt", "wsd", "constant"] = "cosine"
    warmup_steps: Natural = 50
    final_learning_rate_fraction: Annotated[Fraction, "training.schedule=cosine|linear|wsd"] = 0.1
    decay_fraction: Annotated[Fraction, "training.schedule=wsd"] = 0.2
    optimizer: Literal["adamw", "muon"] = "adamw"
    beta1: _Decay = 0.9
    beta2: _Decay = 0.95
    epsilon: NonNegative = 1e-8
    weight_decay: NonNegative = 0.1
    clip: NonNegative = 1.0
    evaluate_every: Natural = 250
    checkpoint_every: Natural | None = None
    keep_checkpoints: Natural = 3
    patience: Count | None = None
    decay_patience: Count | None = None
    label_smoothing: Rate = 0.0
    r_drop: NonNegative = 0.0
    teacher: tuple[str, ...] = ()
    distillation_weight: Annotated[Fraction, "training.teacher"] = 0.5
    distillation_temperature: Annotated[Positive, "training.teacher"] = 1.0
    expert_balance: Annotated[NonNegative, "model.experts"] = 0.01
    ema: _Decay = 0.0
    best_by: Annotated[Literal["loss", "bleu"], "training.bleu_sentences"] = "loss"
    bleu_sentences: Natural = 2000
    sample: tuple[str, ...] = ()
    masking_rate: Annotated[float, Meta(ge=0.001, le=0.999), "model.objective=masked"] = 0.15
    compile: bool = False
    gradient_checkpointing: bool = False
    tensorboard: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise UsageError(f"give only one of {', '.join(lengths)}")
        if self.budget is not None:
            parse_duration(self.budget)
            if self.schedule != "wsd" or self.decay_fraction == 1:
                raise UsageError("a budget needs the schedule wsd and a decay_fraction below 1")

    @property
    def forward_passes(self) -> int:
        return 2 if self.r_drop else 1


def parse_duration(text: str) -> float:
    """Parse a duration such as 90s, 10m or 1h30m into seconds; UsageError if invalid or zero."""
    parts = _FORM.fullmatch(text.strip())
    hours, minutes, seconds = map(float, parts.groups("0")) if parts else (0, 0, 0)
    if not (total := 3600 * hours + 60 * minutes + seconds):
        raise UsageError(f"budget: a time is written like 90s, 10m or 1h30m, not {text!r}")
    return total


Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]

INFERENCE_ONLY_DTYPES: tuple[DType, ...] = ("float16", "int8")
"""Dtypes for inference only."""


@dataclass(frozen=True)
class HardwareConfig(Config):
    """The hardware to run on; `auto` is resolved by measuring the machine.

    Settings:
        device: Device; auto: a GPU if there is one.
        dtype: Dtype of matmuls; float16, int8: inference only.
        threads: CPU threads; default one per core; lm train times which number is fastest.
    """

    device: Device = "auto"
    dtype: DType = "auto"
    threads: Count | None = None


@dataclass(frozen=True)
class DistributionConfig(Config):
    """How several processes hold a model that they train together; a resumed run may change it.

    Settings:
        shard: FSDP: shard weights and optimizer state.
    """

    shard: bool = False


LAYER_KINDS = ("attention", "feed-forward")
"""The kinds of layers that can have adapters."""
_KIND = "|".join(LAYER_KINDS)


@dataclass(frozen=True)
class LoraConfig(Config):
    """Low-rank adapters beside the matrices of a run, its base, whose own weights are frozen; without a rank, none.

    Source: Hu et al. 2021 (LoRA).

    Settings:
        rank: LoRA: rank of the adapters trained on the --from run.
        on: LoRA: layers with adapters.
        alpha: LoRA alpha; adapters are scaled by alpha / rank; default 2 rank.
        dropout: LoRA: dropout.
    """

    rank: Count = DERIVED
    on: Annotated[str, Meta(pattern=f"^({_KIND})(,({_KIND}))*$"), "lora.rank"] = ",".join(LAYER_KINDS)
    alpha: Annotated[NonNegative | None, "lora.rank"] = None
    dropout: Annotated[Rate, "lora.rank"] = 0.0

    def __bool__(self) -> bool:
        return self.rank is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.on.split(","))

    @property
    def scale(self) -> float:
        """Return the scale of the adapters' output: alpha / rank, where alpha defaults to twice the rank."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


FORMAT_VERSION = 4
"""Format version of `config.json` and the run folder; prepared data have their own."""


@dataclass(frozen=True)
class RunPlan:
    """What was chosen for this machine and data: written before the first step; what changes later is in `changes`.

    Attributes:
        steps: number of optimizer steps; with `budget_seconds`, an estimate.
        epochs: passes over the data in so many steps.
        data_key: hash of the inputs and settings that the data were prepared from.
        files: names of the files that the data come from, as they were given.
        tokenizer: name of what the tokenizer was taken of: a file, a run or a prepared corpus; "" if it was trained.
        budget_seconds: to train, compared with `TrainingState.budget_seconds_used`; None without a budget, and once the
            decay has begun, when the number of steps is final.
        max_steps: limit of the number of steps under a budget, beyond which the model would only memorise its text.
        decay_step: step at which the decay starts, under a budget or in an extension.
        decay_scale: learning rate there, as a fraction of the peak.
        on_plateau: whether the decay has started because the validation loss no longer falls.
        extended_at: step at which the run was extended.
        reasons: of each setting, by names such as "training.steps"; missing ones were given by the user.
        changes: lines on what was changed later, and why.
    """

    device: str
    dtype: str
    threads: int
    steps: int
    data: str
    data_key: str
    files: tuple[str, ...] = ()
    tokenizer: str = ""
    epochs: float = 0.0
    budget_seconds: float | None = None
    max_steps: int | None = None
    decay_step: int | None = None
    decay_scale: float = 1.0
    on_plateau: bool = False
    extended_at: int | None = None
    processes: int = 1
    reasons: dict[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    @property
    def decay_start(self) -> tuple[int, float] | None:
        """Return the step at which the decay starts and the fraction of the peak there, if resolved later."""
        return None if self.decay_step is None else (self.decay_step, self.decay_scale)

    @property
    def is_limited(self) -> bool:
        """Whether the run takes `max_steps`, and so ends before its budget does."""
        return self.max_steps is not None and self.steps >= self.max_steps


@dataclass(frozen=True)
class RunConfig(Config):
    """All settings of a run, as in its `config.json`.

    Attributes:
        preset: name of the preset that its settings started from.
        origin: what its weights started from: `from RUN`, or `import` and the kind of model; None if random.
        base_sha256: SHA-256 of the base model's weights file; for adapters.
        data_kind: what its corpus consists of, as found in the columns of its files.
        label_completions: the labels of a decoder trained on labelled examples, with delimiters (`lm.data.windows`).
        parallel: how parallel text, sources and targets, becomes tokens; `distribution` is for parallel training.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    files: FilesConfig = field(default_factory=FilesConfig)
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelTextConfig = field(default_factory=ParallelTextConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    preset: str | None = None
    origin: str | None = None
    base_sha256: str | None = None
    data_kind: DataKind = "text"
    label_completions: tuple[str, ...] = ()
    plan: RunPlan | None = None
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for problem in self._conflicts():
            raise UsageError(problem)

    def _conflicts(self) -> Iterator[str]:
        """Yield what contradicts between sections."""
        model, training, is_sharded = self.model, self.training, self.distribution.shard
        if self.hardware.dtype in INFERENCE_ONLY_DTYPES:
            yield f"the dtype {self.hardware.dtype} is for inference, not for training"
        if training.compile and model.experts:
            yield "a model with experts has no training.compile: its shapes depend on the tokens"
        needs_blocks = is_sharded or training.gradient_checkpointing or self.lora or training.optimizer == "muon"
        if model.is_recurrent and needs_blocks:
            yield "muon, shard, gradient_checkpointing and lora need transformer blocks, not recurrent layers"
        if self.parallel.separate_vocabularies and model.decoder_only:
            yield "a decoder_only model has no separate_vocabularies"
        if model.syntax != "none" and (self.parallel.bidirectional or training.sample):
            yield "a model with syntax is not bidirectional and has no sample: one side and prompts have no trees"
        if self.lora and is_sharded:
            yield "lora and shard exclude each other"

    @property
    def is_classifier(self) -> bool:
        """Whether it is a masked model with labels, or a decoder whose completions are labels."""
        return bool(self.model.labels or self.label_completions)

    @property
    def purpose(self) -> str:
        """Return what the run is for, for messages."""
        return "classifies texts" if self.is_classifier else self.model.purpose

    @property
    def is_supervised(self) -> bool:
        """Whether completions or replies are learned."""
        return self.data_kind in ("examples", "conversations")

    @property
    def has_language_tags(self) -> bool:
        """Return whether sources begin with a language tag, if the tokenizer has tags.

        They do in bidirectional runs, and in imported models, which have no preset.
        """
        return self.parallel.bidirectional or self.preset is None

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "model": self.model.settings()}

    @classmethod
    def from_dict(cls, values: Any, *, where: str) -> RunConfig:
        """Build from the values of `to_dict`; `where` names the file in messages.

        Raises:
            UsageError: a value is missing or wrong, or the format version differs.
        """
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise UsageError(f"{where}: format version {version!r} is not {FORMAT_VERSION}")
        return build_config(cls, values, where=where)


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "tokenizer": TokenizerConfig,
    "files": FilesConfig,
    "data": DataConfig,
    "parallel": ParallelTextConfig,
    "training": TrainingConfig,
    "hardware": HardwareConfig,
    "distribution": DistributionConfig,
    "lora": LoraConfig,
}

CHANGEABLE_ON_RESUME = {
    "training.micro_batch_size", "training.compile", "training.gradient_checkpointing", "training.tensorboard",
    "training.teacher", "distribution.shard", "hardware.threads", "hardware.device", "hardware.dtype",
}  # fmt: skip
"""Settings that may change on resume: they change how a run is computed, or say where a teacher has moved."""


def setting_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of all settings, by names such as "lora.rank"."""
    return {
        setting.key: getattr(getattr(config, setting.section), setting.name) for setting in list_all_settings(SECTIONS)
    }
