"""Presets: default values of settings by name, and the configuration built from a preset and given settings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm.config.model import OF_BLOCKS, ModelConfig
from lm.config.run_config import SECTIONS, RunConfig
from lm.config.settings import did_you_mean, overlay
from lm.errors import UsageError

PresetValues = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """Values that differ from the defaults, by section, and a summary for `lm info`."""

    summary: str
    model: PresetValues = field(default_factory=dict)
    tokenizer: PresetValues = field(default_factory=dict)
    data: PresetValues = field(default_factory=dict)
    parallel: PresetValues = field(default_factory=dict)
    training: PresetValues = field(default_factory=dict)


def _small_translator(n_layers: int, d_model: int, dropout: float) -> dict[str, Any]:
    return {
        "vocab_size": 4000, "context_length": 256, "d_model": d_model, "n_layers": n_layers,
        "n_encoder_layers": n_layers, "n_heads": 4, "d_ff": 512, "positions": "rotary", "norm": "layernorm",
        "activation": "relu", "bias": True, "dropout": dropout, "attention_dropout": 0.0, "scale_embeddings": True,
    }  # fmt: skip


def muon_learning_rate(d_model: int, *, translates: bool = False) -> float:
    """Return the peak learning rate of Muon, which falls with the square root of the width.

    Muon keeps the RMS of the update of a matrix, so that its outputs change by as much at any width.
    """
    return round(6e-3 * (192 / d_model) ** 0.5 if translates else 0.02 * (128 / d_model) ** 0.5, 5)


def _recipe_training(d_model: int) -> dict[str, Any]:
    """Return the training settings of the recipe (docs/lab/recipe.md)."""
    return {
        "optimizer": "muon", "learning_rate": muon_learning_rate(d_model), "schedule": "linear",
        "warmup_steps": 10, "decay_fraction": 0.5, "final_learning_rate_fraction": 0.0,
    }  # fmt: skip


_RECIPE = {
    "positions": "rotary", "norm": "layernorm", "qk_norm": True, "activation": "gelu", "zero_init": True,
    "value_residual": True,
}  # fmt: skip
_PORTABLE_RECIPE = {
    "positions": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "swiglu", "zero_init": True,
    "tie_embeddings": False,
}  # fmt: skip
"""The recipe with the blocks of Qwen3 (2025), which other tools support.

The output layer is its own, as in nanochat (Karpathy 2025), so that it starts at zero: the first prediction is uniform.
A tied one predicts the token that it reads, as blocks that start at zero leave its embedding unchanged
(docs/lab/recipe.md).
"""
_PORTABLE_RATE = 0.5
"""Of the recipe's learning rate, the best of 0.35, 0.5, 0.7, 1 and 1.4 for them (docs/lab/recipe.md)."""
_SMALL_TRANSLATOR_TRAINING = {
    "optimizer": "muon", "schedule": "linear", "final_learning_rate_fraction": 0.0, "warmup_steps": 200, "beta2": 0.98,
    "ema": 0.998, "best_by": "bleu", "decay_fraction": 0.5,
}  # fmt: skip
_RECURRENT_TRAINING = {
    "schedule": "linear", "final_learning_rate_fraction": 0.0, "warmup_steps": 200, "beta2": 0.98,
    "label_smoothing": 0.1, "ema": 0.998, "best_by": "bleu", "decay_fraction": 0.5,
}  # fmt: skip

OWN: dict[str, Preset] = {
    "tiny": Preset(
        "0.9 M parameters: a first model of a small text, minutes on a laptop",
        {**_RECIPE, "vocab_size": 1024, "context_length": 128, "d_model": 128, "n_layers": 4, "n_heads": 4},
        {"vocab_size": 1024},
        training={**_recipe_training(128), "batch_size": 16, "steps": 1000, "evaluate_every": 100},
    ),
    "small": Preset(
        "12 M parameters: tens of megabytes of text, hours on a laptop or minutes on a GPU",
        {**_RECIPE, "vocab_size": 4096, "context_length": 256, "d_model": 384, "n_layers": 6, "n_heads": 6},
        {"vocab_size": 4096},
        training={**_recipe_training(384), "batch_size": 64, "steps": 5000},
    ),
    "base": Preset(
        "98 M parameters: gigabytes of text, a GPU",
        {**_RECIPE, "vocab_size": 16384, "context_length": 1024, "d_model": 768, "n_layers": 12, "n_heads": 12},
        {"vocab_size": 16384},
        training={
            **_recipe_training(768), "batch_size": 256, "micro_batch_size": 16, "steps": 20_000,
            "evaluate_every": 1000,
        },
    ),
    "translation": Preset(
        "3 M parameters: translation from tens of thousands of pairs of sentences, an hour on a laptop",
        _small_translator(4, 160, 0.2), {"vocab_size": 4000},
        parallel={"bpe_dropout": 0.1, "bpe_dropout_until": 0.8},
        training={
            **_SMALL_TRANSLATOR_TRAINING, "batch_tokens": 3072, "epochs": 30.0, "learning_rate": 6e-3,
            "label_smoothing": 0.1, "evaluate_every": 1000,
        },
    ),
    "translation-tiny": Preset(
        "1.4 M parameters: a first translation model from pairs that follow rules, minutes on a laptop",
        _small_translator(2, 128, 0.1), {"vocab_size": 4000},
        training={
            **_SMALL_TRANSLATOR_TRAINING, "batch_tokens": 2048, "epochs": 12.0, "learning_rate": 1e-2,
            "evaluate_every": 400, "bleu_sentences": 500,
        },
    ),
    "seq2seq": Preset(
        "recurrent, of the width of Bahdanau et al. 2015 (GRU, additive attention), which both directions share",
        {
            "vocab_size": 30_000, "context_length": 256, "architecture": "gru", "d_model": 1000, "n_layers": 1,
            "n_encoder_layers": 1, "dropout": 0.2, "scale_embeddings": True,
        },
        {"vocab_size": 30_000},
        training={**_RECURRENT_TRAINING, "batch_tokens": 4096, "steps": 100_000, "learning_rate": 5e-4},
    ),
    "seq2seq-tiny": Preset(
        "1.5 M parameters: a first recurrent translation model (LSTM, additive attention), minutes on a laptop",
        {
            "vocab_size": 4000, "context_length": 256, "architecture": "lstm", "d_model": 192, "n_layers": 1,
            "n_encoder_layers": 1, "dropout": 0.2, "scale_embeddings": True,
        },
        {"vocab_size": 4000},
        training={
            **_RECURRENT_TRAINING, "batch_tokens": 2048, "epochs": 12.0, "learning_rate": 4e-3,
            "evaluate_every": 400, "bleu_sentences": 500,
        },
    ),
}  # fmt: skip
"""Presets of this project."""


def _gpt2(n_layers: int, d_model: int, n_heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 50257, "context_length": 1024, "d_model": d_model, "n_layers": n_layers, "n_heads": n_heads,
        "positions": "learned", "norm": "layernorm", "activation": "gelu-tanh", "bias": True, "dropout": 0.1,
        "init_std": 0.02,
    }  # fmt: skip


def _nanogpt(n_layers: int, d_model: int, context_length: int, n_heads: int, dropout: float) -> dict[str, Any]:
    return {
        "vocab_size": 65, "context_length": context_length, "d_model": d_model, "n_layers": n_layers,
        "n_heads": n_heads, "positions": "learned", "norm": "layernorm", "activation": "gelu", "dropout": dropout,
    }  # fmt: skip


def _llama(n_layers: int, d_model: int, n_heads: int, context_length: int, d_ff: int) -> dict[str, Any]:
    return {
        "vocab_size": 32000, "context_length": context_length, "d_model": d_model, "n_layers": n_layers,
        "n_heads": n_heads, "d_ff": d_ff,
    }  # fmt: skip


def _transformer(d_model: int, d_ff: int, n_heads: int, dropout: float) -> dict[str, Any]:
    return {
        "vocab_size": 37000, "context_length": 512, "d_model": d_model, "n_layers": 6, "n_encoder_layers": 6,
        "n_heads": n_heads, "d_ff": d_ff, "positions": "sinusoidal", "norm": "layernorm", "norm_position": "post",
        "activation": "relu", "bias": True, "dropout": dropout, "scale_embeddings": True,
    }  # fmt: skip


def _switch(experts: int) -> dict[str, Any]:
    """Return T5's encoder-decoder with experts in every second block (Raffel et al. 2020)."""
    return {
        "vocab_size": 32128, "context_length": 512, "d_model": 768, "n_layers": 12, "n_encoder_layers": 12,
        "n_heads": 12, "d_ff": 3072, "positions": "t5", "norm_eps": 1e-6, "activation": "relu", "dropout": 0.1,
        "experts": experts, "expert_every": 2, "expert_capacity": 1.25,
    }  # fmt: skip


_BERT = {
    "vocab_size": 30522, "context_length": 512, "d_model": 768, "n_layers": 12, "n_heads": 12, "objective": "masked",
    "positions": "learned", "norm": "layernorm", "norm_position": "post", "norm_eps": 1e-12, "activation": "gelu",
    "bias": True, "dropout": 0.1, "init_std": 0.02, "embedding_norm": True, "output_transform": True,
}  # fmt: skip
"""Without token types, as there is no next-sentence prediction."""


_NANOGPT_TRAINING = {"beta2": 0.99, "warmup_steps": 100, "learning_rate": 1e-3}
_GPT2_TRAINING = {"batch_size": 480, "steps": 600_000, "learning_rate": 6e-4, "warmup_steps": 2000}
_GPT2_TOKENIZER = {"vocab_size": 50257}
_LLAMA_TRAINING = {"batch_size": 128, "steps": 100_000, "learning_rate": 5e-4, "warmup_steps": 1000}
_TRANSFORMER_TRAINING = {
    "batch_tokens": 25_000, "steps": 100_000, "schedule": "inverse-sqrt", "warmup_steps": 4000,
    "beta2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0, "clip": 0.0, "label_smoothing": 0.1,
}  # fmt: skip


PUBLISHED: dict[str, Preset] = {
    "nanogpt-cpu": Preset(
        "nanoGPT's recipe for a laptop: characters, context 64",
        _nanogpt(4, 128, 64, 4, 0.0), {"kind": "char"},
        training={**_NANOGPT_TRAINING, "batch_size": 12, "steps": 2000},
    ),
    "nanogpt": Preset(
        "nanoGPT's recipe for a GPU: characters, context 256",
        _nanogpt(6, 384, 256, 6, 0.2), {"kind": "char"},
        training={**_NANOGPT_TRAINING, "batch_size": 64, "steps": 5000},
    ),
    "gpt1": Preset(
        "GPT (Radford et al. 2018)",
        {**_gpt2(12, 768, 12), "vocab_size": 40478, "context_length": 512, "norm_position": "post"},
        {"vocab_size": 40478},
        training={
            "batch_size": 64, "epochs": 100.0, "learning_rate": 2.5e-4, "warmup_steps": 2000, "weight_decay": 0.01,
        },
    ),
    "gpt2": Preset("GPT-2 (Radford et al. 2019)", _gpt2(12, 768, 12), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "gpt2-medium": Preset("GPT-2 medium", _gpt2(24, 1024, 16), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "gpt2-large": Preset("GPT-2 large", _gpt2(36, 1280, 20), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "gpt2-xl": Preset("GPT-2 XL", _gpt2(48, 1600, 25), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "llama-15m": Preset(
        "Llama's block at the size of llama2.c's stories15M",
        _llama(6, 288, 6, 256, 768), {"vocab_size": 32000}, training=_LLAMA_TRAINING,
    ),
    "llama-42m": Preset(
        "Llama's block at the size of llama2.c's stories42M",
        _llama(8, 512, 8, 1024, 1376), {"vocab_size": 32000}, training=_LLAMA_TRAINING,
    ),
    "llama-110m": Preset(
        "Llama's block at the size of llama2.c's stories110M",
        _llama(12, 768, 12, 1024, 2048), {"vocab_size": 32000}, training=_LLAMA_TRAINING,
    ),
    "smollm-135m": Preset(
        "SmolLM 135M (2024): deep and narrow, 3 key/value heads for 9 query heads",
        {**_llama(30, 576, 9, 2048, 1536), "n_kv_heads": 3, "vocab_size": 49152}, {"vocab_size": 49152},
        training={**_LLAMA_TRAINING, "schedule": "wsd", "learning_rate": 3e-3, "final_learning_rate_fraction": 0.0},
    ),
    "transformer-base": Preset(
        "the encoder-decoder of Vaswani et al. 2017, base",
        _transformer(512, 2048, 8, 0.1), {"vocab_size": 37000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4},
    ),
    "transformer-relative": Preset(
        "transformer-base with the relative positions of Shaw et al. 2018",
        {**_transformer(512, 2048, 8, 0.1), "positions": "relative"}, {"vocab_size": 37000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4},
    ),
    "transformer-big": Preset(
        "the encoder-decoder of Vaswani et al. 2017, big",
        _transformer(1024, 4096, 16, 0.3), {"vocab_size": 37000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 5e-4, "steps": 300_000},
    ),
    "t-dmca": Preset(
        "the decoder of Liu et al. 2018 for long texts: alternating local and memory-compressed attention",
        {
            **_transformer(512, 2048, 8, 0.1), "vocab_size": 32_000, "context_length": 11_000, "n_layers": 5,
            "n_encoder_layers": 0, "attention": "compressed",
        },
        {"vocab_size": 32_000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4},
    ),
    "switch-base": Preset(
        "Switch Transformer base of 8 experts (Fedus et al. 2021)",
        _switch(8), {"vocab_size": 32128},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4, "clip": 1.0, "label_smoothing": 0.0},
    ),
    "bert-base": Preset(
        "BERT base (Devlin et al. 2019), a masked model",
        _BERT, {"vocab_size": 30522},
        training={
            "batch_size": 256, "steps": 1_000_000, "learning_rate": 1e-4, "schedule": "linear",
            "warmup_steps": 10_000, "final_learning_rate_fraction": 0.0, "beta2": 0.999,
            "epsilon": 1e-6, "weight_decay": 0.01,
        },
    ),
}  # fmt: skip

PRESETS = {**OWN, **PUBLISHED}
DEFAULT_PRESET, DEFAULT_TRANSLATION_PRESET = "tiny", "translation"
_SIZES = ("tiny", "small", "base")
_OF_DEPTH = re.compile(r"(translation-)?depth-([1-9][0-9]?)")
_PORTABLE = "portable-"


def is_preset(name: str) -> bool:
    named = name.removeprefix(_PORTABLE)
    return named in PRESETS or _OF_DEPTH.fullmatch(named) is not None


def depth_preset_name(depth: int, *, pairs: bool) -> str:
    """Return the preset of a depth: an encoder-decoder for sentence pairs, else a decoder."""
    return f"{'translation-' if pairs else ''}depth-{depth}"


def preset_depth(name: str | None) -> int | None:
    """Return the depth in a preset's name; None for other presets."""
    match = _OF_DEPTH.fullmatch((name or "").removeprefix(_PORTABLE))
    return None if match is None else int(match[2])


def has_training_recipe(name: str) -> bool:
    """Return whether a preset also sets the training: published ones, and those for sentence pairs."""
    return preset_depth(name) is None and name.removeprefix(_PORTABLE) not in _SIZES


def portable_name(name: str) -> str:
    """Return the name of the portable form of a preset: same shape and training, with common blocks."""
    return _PORTABLE + name.removeprefix(_PORTABLE)


def is_portable_name(name: str | None) -> bool:
    return name is not None and name.startswith(_PORTABLE)


def could_be_portable(config: RunConfig) -> bool:
    """Return whether a model has the recipe's blocks, and its preset a portable form."""
    named = config.preset
    is_of_recipe = named is not None and is_preset(named) and _has_recipe_blocks(find_preset(named).model)
    return is_of_recipe and _has_recipe_blocks(dataclasses.asdict(config.model))


def find_preset(name: str) -> Preset:
    """Return a preset by name, also depth-N, translation-depth-N and portable-NAME.

    Raises:
        UsageError: there is none; the message suggests the nearest.
    """
    if is_portable_name(name):
        return _make_portable(name.removeprefix(_PORTABLE))
    if match := _OF_DEPTH.fullmatch(name):
        return (build_translation_depth_preset if match[1] else build_depth_preset)(int(match[2]))
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}{did_you_mean(name, PRESETS)}; `lm info` lists presets")
    return PRESETS[name]


def build_depth_preset(depth: int) -> Preset:
    """Return a decoder of a depth: d_model 64 times the depth, a head per layer, 20 tokens/parameter.

    Source: the single dial, nanochat (Karpathy 2025); the length, Hoffmann et al. 2022.
    """
    width, vocabulary = 64 * depth, 1024 if depth < 4 else 4096
    context = 128 if depth < 4 else 256 if depth < 8 else 1024
    parameters = 12 * depth * width**2 + vocabulary * width
    return Preset(
        f"{depth} layers, {width} wide",
        {
            **_RECIPE, "vocab_size": vocabulary, "context_length": context, "d_model": width, "n_layers": depth,
            "n_heads": depth,
        },
        {"vocab_size": vocabulary},
        training={
            **_recipe_training(width), "batch_tokens": 2**11 * depth, "tokens": 20 * parameters,
        },
    )  # fmt: skip


def build_translation_depth_preset(depth: int) -> Preset:
    """Return an encoder-decoder with `depth` layers in each stack and d_model 64 × `depth`.

    It is trained for ten epochs, which suits tens of thousands of pairs.
    """
    width = 64 * depth
    return Preset(
        f"{depth} layers on each side, {width} wide",
        {**_small_translator(depth, width, 0.1), "n_heads": max(4, depth), "d_ff": 4 * width},
        {"vocab_size": 4000},
        training={
            **_SMALL_TRANSLATOR_TRAINING, "batch_tokens": 3072, "epochs": 10.0, "label_smoothing": 0.1,
            "learning_rate": muon_learning_rate(width, translates=True), "evaluate_every": 500, "bleu_sentences": 500,
        },
    )  # fmt: skip


def _has_recipe_blocks(model: PresetValues) -> bool:
    return all(model.get(key) == value for key, value in _RECIPE.items())


def _make_portable(name: str) -> Preset:
    """Replace the blocks of a recipe preset; UsageError if it has other blocks."""
    row = find_preset(name)
    if not _has_recipe_blocks(row.model):
        raise UsageError(f"portable: the preset {name} has blocks of its own; tiny, small, base and depth-N have not")
    shape = {key: value for key, value in row.model.items() if key not in _RECIPE}
    training = {**row.training, "learning_rate": round(_PORTABLE_RATE * row.training["learning_rate"], 5)}
    return dataclasses.replace(
        row,
        summary=f"{name} with the blocks of Qwen3, and an output layer of its own",
        model={**shape, **_PORTABLE_RECIPE},
        training=training,
    )


def build_run_config(name: str, overrides: Mapping[str, PresetValues] | None = None) -> RunConfig:
    """Build the configuration of a preset with some fields given.

    Args:
        overrides: section ("model", "training", …) to given fields, which replace the preset's. A budget implies its
            schedule, a recurrent architecture drops settings of blocks, adapters have their own optimizer, and a
            decoder-only translation model has the layers of both stacks.
    """
    row = find_preset(name)
    overrides = overrides or {}
    sections = {}
    for section, config in SECTIONS.items():
        values = getattr(row, section, {})
        if overrides.get("model", {}).get("architecture", "transformer") != "transformer":
            values = _without_blocks(values)
        if overrides.get("lora", {}).get("rank") is not None and "optimizer" not in overrides.get("training", {}):
            values = _for_adapters(values)
        if overrides.get(section, {}).get("decoder_only"):
            values = _for_single_stack(values)
        if overrides.get(section, {}).get("budget") is not None:
            values = {**values, "schedule": "wsd"}
        sections[section] = config(**overlay(values, overrides.get(section, {})))
    return dataclasses.replace(RunConfig(preset=name), **sections)


def _without_blocks(values: PresetValues) -> PresetValues:
    """Remove the settings of transformer blocks, and Muon with its learning rate.

    AdamW trains recurrent layers faster: after 300 steps of copying reversed digits (LSTM, 96 wide, additive attention)
    its loss was 0.01 and Muon's 0.5.
    """
    muon_settings = ("optimizer", "learning_rate") if values.get("optimizer") == "muon" else ()
    return {name: value for name, value in values.items() if name not in (*OF_BLOCKS, *muon_settings)}


def _for_adapters(values: PresetValues) -> PresetValues:
    """Replace Muon by AdamW at half the learning rate.

    AdamW was never worse at that rate, and better after few steps and in a wider model: docs/lab/quality.md.
    """
    if values.get("optimizer") != "muon":
        return values
    return {**values, "optimizer": "adamw", "learning_rate": values["learning_rate"] / 2}


def _for_single_stack(values: PresetValues) -> PresetValues:
    """Give a single stack the layers of both stacks of a preset."""
    layers = values.get("n_layers", ModelConfig.n_layers) + values.get("n_encoder_layers", 0)
    return {**values, "n_layers": layers, "n_encoder_layers": 0}
