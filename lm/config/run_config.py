"""The configuration of a run: its settings, and the plan resolved from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lm.config.data import DataConfig, DataKind, FilesConfig, ParallelTextConfig
from lm.config.hardware import INFERENCE_ONLY_DTYPES, DistributionConfig, HardwareConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.settings import Config, build_config, list_all_settings
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig
from lm.errors import UsageError

FORMAT_VERSION = 3
"""Format version of `config.json` and the run folder; prepared data have their own."""


@dataclass(frozen=True)
class RunPlan:
    """What was chosen for this machine and data: written before the first step, and only read afterwards.

    Attributes:
        optimizer_dtype: of Muon's matmuls.
        steps: number of optimizer steps; with `budget_seconds`, an estimate.
        epochs: passes over the data in so many steps.
        data_key: hash of the inputs and settings that the data were prepared from.
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
    epochs: float = 0.0
    budget_seconds: float | None = None
    max_steps: int | None = None
    decay_step: int | None = None
    decay_scale: float = 1.0
    on_plateau: bool = False
    extended_at: int | None = None
    optimizer_dtype: str = "bfloat16"
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
        label_completions: the labels of a decoder trained on labelled examples, with delimiters (`lm.data.rows`).
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
    def learns_completions(self) -> bool:
        """Whether it is a decoder trained on examples, whose completions are scored or ranked."""
        return self.is_supervised and not self.model.is_masked

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
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self), "model": self.model.settings()}

    @classmethod
    def from_dict(cls, values: Any, *, where: str) -> RunConfig:
        """Build from the values of `to_dict`; `where` names the file in messages.

        Raises:
            UsageError: a value is missing or wrong, or the format version differs.
        """
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise UsageError(f"{where}: format version {version!r} is not {FORMAT_VERSION}")
        given = {name: value for name, value in values.items() if name != "format_version"}
        return build_config(cls, given, where=where)


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
    "training": ("micro_batch_size", "compile", "gradient_checkpointing", "tensorboard"),
    "distribution": ("shard",),
    "hardware": ("threads",),
}
"""Settings that may change on resume, by section: they change how a run is computed, not what."""


def setting_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of all settings, by names such as "lora.rank"."""
    return {
        setting.key: getattr(getattr(config, setting.section), setting.name) for setting in list_all_settings(SECTIONS)
    }
