"""The llama.cpp architectures that our models can be: supported fields and metadata keys.

They are the families of transformers with fewer supported fields.

Source: the GGUF specification, and src/models of llama.cpp.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.interop.hugging_face.families import (
    GPT2,
    GPT_NEOX,
    LLAMA,
    QWEN2,
    QWEN3,
    Allowed,
    Family,
    differing_fields,
    format_fields,
    nearest_family,
)

_GELU: dict[str, tuple[Any, ...]] = {"activation": ("gelu-tanh", "gelu")}
"""llama.cpp computes both with tanh, also for published models with the exact GELU."""
_NO_WINDOW: dict[str, tuple[Any, ...]] = {"attention": ("full",)}
_NO_LLAMA3_SCALING: dict[str, tuple[Any, ...]] = {"rope_scaling": ("none", "linear", "yarn")}
LLAMA_NAME, GPT_NEOX_NAME = "llama", "gptneox"
_YARN = {"rope_fast": 32.0, "rope_slow": 1.0}
"""YaRN's beta_fast and beta_slow, which these architectures fix."""


def _architecture(name: str, family: Family, allowed: Allowed) -> Family:
    """Derive a family whose matrices are stored as llama.cpp has them; `gguf` knows the names of its tensors."""
    return dataclasses.replace(
        family,
        options={
            key: option for key, option in family.options.items() if (key, name) != ("attention_bias", GPT_NEOX_NAME)
        },
        architecture=name,
        allowed={**family.allowed, **allowed},
        layout="rows",
    )


ARCHITECTURES = (
    _architecture("gpt2", GPT2, _GELU),
    _architecture(GPT_NEOX_NAME, GPT_NEOX, _GELU | _NO_LLAMA3_SCALING),
    _architecture("qwen2", QWEN2, _NO_WINDOW | _NO_LLAMA3_SCALING | {"d_head": (None,)}),
    _architecture(LLAMA_NAME, LLAMA, _NO_WINDOW),
    _architecture("qwen3", QWEN3, _NO_WINDOW | _NO_LLAMA3_SCALING | {"attention_bias": ("none",)}),
)
"""In order of preference."""


def find_architecture(config: ModelConfig) -> Family:
    """Return the architecture of a model.

    Raises:
        UsageError: llama.cpp has none; the message names the fields that differ from the nearest.
    """
    architecture = nearest_family(config, ARCHITECTURES)
    differing = differing_fields(config, architecture.fields)
    if config.rope_scaling == "yarn":
        differing |= {name: getattr(config, name) for name, fixed in _YARN.items() if getattr(config, name) != fixed}
    if differing:
        raise UsageError(f"llama.cpp has no model with {format_fields(differing)}")
    return architecture


def build_metadata(config: ModelConfig, architecture: Family) -> dict[str, Any]:
    """Return the GGUF metadata of a model."""
    kind = "layer_norm_rms_epsilon" if config.norm == "rmsnorm" else "layer_norm_epsilon"
    values = {
        "context_length": config.context_length,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.d_head,
        "attention.value_length": config.d_head,
        f"attention.{kind}": float(config.norm_eps),
        "vocab_size": config.vocab_size,
    }
    if architecture.architecture == GPT_NEOX_NAME:
        values["use_parallel_residual"] = config.parallel_residual
    if config.positions == "rotary":
        values |= {
            "rope.dimension_count": config.rotary_dim,
            "rope.freq_base": float(config.rope_base),
        } | _rope_scaling_metadata(config)
    return {f"{architecture.architecture}.{key}": value for key, value in values.items()}


def _rope_scaling_metadata(config: ModelConfig) -> dict[str, Any]:
    """Return the RoPE scaling by name, if it has one; else the factors are a tensor."""
    if config.rope_scaling not in ("linear", "yarn"):
        return {}
    keys: dict[str, Any] = {"rope.scaling.type": config.rope_scaling, "rope.scaling.factor": float(config.rope_factor)}
    if config.rope_scaling == "yarn":
        default_temperature = config.replace(rope_temperature=None).rope_temperature
        keys |= {
            "rope.scaling.original_context_length": config.rope_context,
            "rope.scaling.attn_factor": config.rope_temperature / default_temperature,
        }
    return keys
