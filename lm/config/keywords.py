"""Keyword arguments of the Python API: the flags of the commands, with underscores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, Unpack

from lm.config.data import FilesConfig, Format
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.hardware import Device, DType, read_threads_variable
from lm.config.model_fields import (
    Activation,
    Architecture,
    AttentionBias,
    AttentionKind,
    Norm,
    NormPosition,
    Objective,
    Positions,
    RecurrentScores,
    RotaryScaling,
    Syntax,
)
from lm.config.options import did_you_mean, list_options
from lm.config.presets import depth_preset_name
from lm.config.run_config import SECTIONS
from lm.config.run_spec import DataFiles, RunSpec, Settings, merge_layers
from lm.config.tokenizer import MergeScope, TokenizerKind
from lm.config.toml import read_toml
from lm.config.training import Criterion, OptimizerKind, Orthogonalisation, Schedule
from lm.errors import UsageError

PathLike = str | os.PathLike[str]
"""A file or folder."""


class SamplingOptions(TypedDict, total=False):
    """Keywords of `Model.generate` and `Model.stream`, the fields of `SamplingConfig`; `stop` may be one text."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    greedy: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram: int | None
    logit_bias: Sequence[str]
    stop: str | Sequence[str]
    seed: int | None
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    token_healing: bool


class TranslationOptions(TypedDict, total=False):
    """Keywords of `Model.translate` and `Model.translations`, the fields of `TranslationConfig`."""

    beam: int
    n_best: int
    length_penalty: float
    coverage_penalty: float
    max_length_ratio: float
    max_length_extra: int
    batch_tokens: int
    read_ahead: int | None


def build_sampling_config(options: SamplingOptions) -> SamplingConfig:
    """Build the settings of `Model.generate`; UsageError for an unknown keyword."""
    values: dict[str, Any] = dict(options)
    _check_keywords(values, SamplingConfig)
    for name in {"stop", "logit_bias"} & values.keys():
        values[name] = (values[name],) if isinstance(values[name], str) else tuple(values[name])
    return SamplingConfig(**values)


def build_translation_config(options: TranslationOptions) -> TranslationConfig:
    """Build the settings of `Model.translate`; UsageError for an unknown keyword."""
    _check_keywords(options, TranslationConfig)
    return TranslationConfig(**options)


def _check_keywords(keywords: Iterable[str], config: type[SamplingConfig | TranslationConfig]) -> None:
    names = [field.name for field in fields(config)]
    for name in keywords:
        if name not in names:
            raise UsageError(f"no setting {name!r}{did_you_mean(name, names)}")


class FileOptions(TypedDict, total=False):
    """Keywords of `Model.perplexity` for the files, the fields of `FilesConfig`, and of `DataConfig` for their rows."""

    format: Format | None
    encoding: str
    include: Sequence[str]
    exclude: Sequence[str]
    skip_unreadable: bool
    header: bool | None
    field: str | None
    text_column: str | None


class RunOptions(TypedDict, total=False):
    """What can be given for a run besides the files of its text; all of it has a default.

    Attributes not of a section:
        source, target, pairs, validation_source, validation_target, heads, validation_heads: see `DataFiles`.
        out: folder of the new run [default: a new one under runs/].
        preset: the name of the settings to start from.
        depth: the number of layers that names a preset.
        portable: whether to build the model of blocks that other tools run.
        config: a TOML file of settings, over which keywords win.
        from_run: the run to start from the weights of.
        tokenizer: a tokenizer.json, or a run, to take the tokenizer of.
        resume: the run to resume, or one of its checkpoints.
        processes: how many train together, on this machine.
    """

    source: PathLike | Sequence[PathLike]
    target: PathLike | Sequence[PathLike]
    pairs: PathLike | Sequence[PathLike]
    validation_source: PathLike | None
    validation_target: PathLike | None
    heads: PathLike | Sequence[PathLike]
    validation_heads: PathLike | None
    out: PathLike | None
    preset: str | None
    depth: int | None
    portable: bool
    config: PathLike | None
    from_run: PathLike | None
    tokenizer: PathLike | None
    resume: PathLike | None
    processes: int
    # [model]
    context: int
    architecture: Architecture
    recurrent_attention: RecurrentScores | None
    d_model: int
    n_layers: int
    n_encoder_layers: int
    decoder_only: bool
    n_heads: int
    n_kv_heads: int | None
    d_ff: int | None
    attention: AttentionKind
    attention_window: int | None
    attention_block: int | None
    global_blocks: int | None
    random_blocks: int | None
    attention_rank: int | None
    attention_stride: int | None
    positions: Positions
    max_distance: int | None
    max_tree_distance: int | None
    syntax: Syntax
    rope_base: float
    d_head: int | None
    rotary_fraction: float
    rope_scaling: RotaryScaling
    rope_factor: float | None
    rope_context: int | None
    rope_slow: float | None
    rope_fast: float | None
    rope_temperature: float | None
    attention_bias: AttentionBias | None
    parallel_residual: bool
    norm: Norm
    norm_position: NormPosition
    norm_eps: float
    activation: Activation
    qk_norm: bool
    bias: bool
    dropout: float
    attention_dropout: float | None
    tie_embeddings: bool
    scale_embeddings: bool
    init_std: float | None
    zero_init: bool
    softcap: float
    value_residual: bool
    embedding_shortcut: bool
    experts: int
    experts_per_token: int
    expert_every: int
    expert_capacity: float
    gate_noise: float
    objective: Objective
    embedding_norm: bool
    token_types: int
    output_bias: bool
    output_transform: bool
    # [tokenizer]
    kind: TokenizerKind
    vocab_size: int
    min_frequency: int
    merges: MergeScope
    # [files]
    format: Format | None
    encoding: str
    include: Sequence[str]
    exclude: Sequence[str]
    skip_unreadable: bool
    skip_malformed: bool
    header: bool | None
    # [data]
    validation: str
    separator: str
    text_column: str | None
    field: str | None
    label_column: str | None
    label_field: str | None
    supervised: bool
    keep_line_ends: bool
    strip_gutenberg: bool
    # [parallel]
    bidirectional: bool
    source_language: str | None
    target_language: str | None
    source_column: str
    source_field: str
    target_column: str
    target_field: str
    separate_vocabularies: bool
    max_length: int
    max_ratio: float
    bpe_dropout: float
    bpe_dropout_until: float
    # [training]
    steps: int | None
    epochs: float | None
    tokens: int | None
    budget: str | None
    batch_size: int
    batch_tokens: int | None
    batch_warmup: int
    micro_batch_size: int | None
    learning_rate: float
    schedule: Schedule
    warmup_steps: int
    final_learning_rate_fraction: float
    decay_fraction: float
    optimizer: OptimizerKind
    orthogonalisation: Orthogonalisation
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip: float
    evaluate_every: int
    checkpoint_every: int | None
    keep: int
    patience: int | None
    decay_patience: int | None
    label_smoothing: float
    source_loss: float
    r_drop: float
    expert_balance: float
    ema: float
    best_by: Criterion
    bleu_sentences: int
    sample: Sequence[str]
    masking_rate: float
    whole_words: bool
    compile: bool
    checkpoint_activations: bool
    seed: int
    # [hardware]
    device: Device
    dtype: DType
    threads: int | None
    # [distribution]
    shard: bool
    offload: bool
    # [lora]
    lora: int | None
    lora_on: str
    lora_alpha: float | None
    lora_dropout: float


_FILES = ("source", "target", "pairs", "heads")
_VALIDATION = ("validation_source", "validation_target", "validation_heads")
_OF_RUNS = ("out", "preset", "from_run", "tokenizer", "resume")
_OTHERS = ("depth", "portable", "config", "processes")


def build_files_config(options: FileOptions) -> tuple[FilesConfig, dict[str, str]]:
    """Return file settings, and the named fields of rows, from keywords."""
    values = _group_by_section(dict(options))
    return FilesConfig(**values["files"]), values["data"]


def run_spec(*corpus: PathLike, **options: Unpack[RunOptions]) -> RunSpec:
    """Build the specification of a run from Python values.

    Args:
        corpus: text files, globs, folders, or a folder of prepared tokens.
        options: see `RunOptions`; None means the default, which for threads is LM_THREADS, as for flags.

    Raises:
        UsageError: a keyword is unknown, a value is wrong, or values contradict each other.
    """
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    files: dict[str, Any] = {name: _as_names(values.pop(name)) for name in _FILES if name in values}
    files |= {name: os.fspath(values.pop(name)) for name in _VALIDATION if name in values}
    data = DataFiles(text=_as_names(corpus), **files)
    run = {name: os.fspath(values.pop(name)) for name in _OF_RUNS if name in values}
    depth, portable, config, processes = (values.pop(name, None) for name in _OTHERS)
    if depth is not None:
        named = depth_preset_name(depth, pairs=data.are_pairs)
        if beside := {"preset", "n_layers"} & {*run, *values}:
            raise UsageError(f"depth {depth} is the preset {named}: leave out {' and '.join(sorted(beside))}")
        run["preset"] = named
    preset, in_file = (None, {}) if config is None else read_toml(Path(config))
    threads = read_threads_variable()
    ambient: Settings = {} if threads is None else {"hardware": {"threads": threads}}
    settings, by_setting = merge_layers(
        [("file", in_file), ("environment", ambient), ("python", _group_by_section(values))]
    )
    set_by = dict.fromkeys(run, "python")
    if preset is not None and "preset" not in run:
        run["preset"], set_by["preset"] = preset, "file"
    return RunSpec(
        data=data,
        portable=bool(portable),
        processes=processes or 1,
        settings=settings,
        set_by={**set_by, **by_setting},
        **run,
    )


def _as_names(value: PathLike | Sequence[PathLike]) -> tuple[str, ...]:
    named = [value] if isinstance(value, str | os.PathLike) else value
    return tuple(str(os.fspath(name)) for name in named)


def _group_by_section(values: dict[str, Any]) -> Settings:
    """Group option values by section and field; UsageError for unknown options or invalid values."""
    known = {option.setting: (section, option) for section, kind in SECTIONS.items() for option in list_options(kind)}
    settings: Settings = {section: {} for section in SECTIONS}
    for name, value in values.items():
        if name not in known:
            hint = did_you_mean(name, [*known, *_FILES, *_VALIDATION, *_OF_RUNS, *_OTHERS])
            raise UsageError(f"unknown keyword {name!r}{hint}")
        section, option = known[name]
        option.check(value)
        settings[section][option.name] = value
    return settings
