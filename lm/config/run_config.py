"""The configuration of a run: its settings, and the plan resolved from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm.config import options
from lm.config.data import DataConfig, FilesConfig, ParallelTextConfig
from lm.config.hardware import INFERENCE_ONLY_DTYPES, DistributionConfig, HardwareConfig
from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.config.tokenizer import TokenizerConfig
from lm.config.training import TrainingConfig
from lm.errors import UsageError

FORMAT_VERSION = 2
"""Format version of `config.json` and the run folder; prepared data have their own."""


@dataclass(frozen=True)
class RunPlan:
    """What was chosen for this machine and data: written before the first step, and only read afterwards.

    Attributes:
        optimizer_dtype: of Muon's matmuls.
        micro_batch_tokens: maximum tokens per forward pass, fitted to the memory of a GPU; None:
            `training.micro_batch_size` applies.
        steps: number of optimizer steps; with `budget_seconds`, an estimate.
        data_key: hash of the inputs and settings that the data were prepared from.
        budget_seconds: to train, compared with `TrainingState.budget_seconds_used`; None without a budget, and once the
            decay has begun, when the number of steps is final.
        max_steps: limit of the number of steps under a budget, beyond which the model would only memorise its text.
        decay_step: step at which the decay starts, under a budget or in an extension.
        decay_scale: learning rate there, as a fraction of the peak.
        on_plateau: whether the decay has started because the validation loss no longer falls.
        extended_at: step at which the run was extended.
    """

    device: str
    dtype: str
    threads: int
    steps: int
    data: str
    data_key: str
    budget_seconds: float | None = None
    max_steps: int | None = None
    decay_step: int | None = None
    decay_scale: float = 1.0
    on_plateau: bool = False
    extended_at: int | None = None
    optimizer_dtype: str = "bfloat16"
    processes: int = 1
    micro_batch_tokens: int | None = None

    @property
    def decay_start(self) -> tuple[int, float] | None:
        """Return the step at which the decay starts and the fraction of the peak there, if resolved later."""
        return None if self.decay_step is None else (self.decay_step, self.decay_scale)

    @property
    def is_limited(self) -> bool:
        """Whether the run takes `max_steps`, and so ends before its budget does."""
        return self.max_steps is not None and self.steps >= self.max_steps


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, as in its `config.json`.

    Attributes:
        preset: name of the preset that its settings started from.
        origin: what its weights started from: `from RUN`, or `import` and the kind of model; None if random.
        base_sha256: SHA-256 of the base model's weights file; for adapters.
        label_completions: the labels of a decoder trained on labelled examples, with delimiters (`lm.data.labels`).
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
    label_completions: tuple[str, ...] = ()
    plan: RunPlan | None = None

    def __post_init__(self) -> None:
        if (dtype := self.hardware.dtype) in INFERENCE_ONLY_DTYPES:
            raise UsageError(f"{dtype} is for inference, not for training: choose another dtype", settings=("dtype",))
        if self.training.compile and self.model.experts:
            raise UsageError(
                "a model with experts is not compiled: its shapes depend on the tokens", settings=("compile",)
            )
        if self.model.is_recurrent and (self.distribution.shard or self.training.checkpoint_activations):
            raise UsageError(
                "sharding and activation checkpointing need transformer blocks: leave them out of a recurrent model",
                settings=("shard", "checkpoint_activations"),
            )
        if self.parallel.separate_vocabularies and self.model.decoder_only:
            raise UsageError(
                "source and target share one vocabulary in a decoder-only model: leave one of the two out",
                settings=("separate_vocabularies", "decoder_only"),
            )
        if self.model.syntax != "none":
            self._check_trees()
        if self.lora and self.distribution.shard:
            raise UsageError("adapters are not sharded: leave one of the two out", settings=("shard", "lora"))
        if self.lora and self.model.is_recurrent:
            raise UsageError(
                "adapters are for transformer blocks, not for recurrent layers: leave them out", settings=("lora",)
            )

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
        return self.data.supervised and not self.model.is_masked

    @property
    def has_language_tags(self) -> bool:
        """Return whether sources begin with a language tag, if the tokenizer has tags.

        They do in bidirectional runs, and in imported models, which have no preset.
        """
        return self.parallel.bidirectional or self.preset is None

    def _check_trees(self) -> None:
        if self.parallel.bidirectional:
            raise UsageError(
                "only one side has dependency trees: leave one of the two out", settings=("bidirectional", "syntax")
            )
        if self.training.sample:
            raise UsageError(
                "a sample prompt has no dependency tree: leave one of the two out", settings=("sample", "syntax")
            )

    def to_dict(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self), "model": self.model.settings()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> RunConfig:
        """Build from the values of `to_dict`; `where` names the file in messages.

        Raises:
            UsageError: a value is missing or wrong, or the format version differs.
        """
        if not isinstance(values, Mapping):
            raise UsageError(f"{where}: must be an object of keys and values, not {options.format_value(values)}")
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise UsageError(f"{where}: format version {options.format_value(version)} is not {FORMAT_VERSION}")
        parts: dict[str, Any] = {
            name: options.build_config(kind, values.get(name, {}), where=f"{where}, {name}")
            for name, kind in SECTIONS.items()
        }
        plan = values.get("plan")
        for name in ("preset", "origin", "base_sha256"):
            if not isinstance(values.get(name), str | None):
                raise UsageError(f"{where}: {name} must be a string or null, not {options.format_value(values[name])}")
        labels = values.get("label_completions", ())
        if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
            raise UsageError(
                f"{where}: label_completions must be a list of strings, not {options.format_value(labels)}"
            )
        return cls(
            **parts,
            preset=values.get("preset"),
            origin=values.get("origin"),
            base_sha256=values.get("base_sha256"),
            label_completions=tuple(labels),
            plan=plan if plan is None else options.build_config(RunPlan, plan, where=f"{where}, plan"),
        )


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
    "training": ("micro_batch_size", "compile", "checkpoint_activations"),
    "distribution": ("shard", "offload"),
}
"""Settings that may change on resume, by section: they change how a run is computed, not what."""


def setting_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of all settings, by names such as "lora.rank"."""
    return {
        f"{section}.{option.name}": getattr(getattr(config, section), option.name)
        for section, kind in SECTIONS.items()
        for option in options.list_options(kind)
    }
