"""Architectures of other systems, as allowed values of `ModelConfig` fields.

A model that fits one is portable: other tools run it without code of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lm.config.model import ModelConfig

AllowedValues = Mapping[str, tuple[Any, ...]]
"""Fields of a ModelConfig, or `is_encoder_decoder`, each with the values that it may have."""

_COMMON: AllowedValues = {
    "architecture": ("transformer",), "n_encoder_layers": (0,), "decoder_only": (False,), "experts": (0,),
    "value_residual": (False,), "embedding_shortcut": (False,), "softcap": (0,), "scale_embeddings": (False,),
    "norm_position": ("pre",), "objective": ("causal",), "embedding_norm": (False,), "output_transform": (False,),
    "attention": ("full",), "token_types": (0,), "output_bias": (False,),
}  # fmt: skip
"""Allowed values common to all architectures."""
_WITH_LAYERNORM: AllowedValues = {
    **_COMMON, "norm": ("layernorm",), "positions": ("learned",),
    "activation": ("gelu", "gelu-tanh", "relu", "relu2", "silu"), "qk_norm": (False,), "n_kv_heads": (None,),
    "d_head": (None,), "parallel_residual": (False,),
}  # fmt: skip
_LLAMA: AllowedValues = {
    **_COMMON, "norm": ("rmsnorm",), "positions": ("rotary",), "activation": ("swiglu",), "rotary_fraction": (1.0,),
    "parallel_residual": (False,), "qk_norm": (False,),
}  # fmt: skip
_QWEN: AllowedValues = {**_LLAMA, "attention_bias": ("inputs",), "bias": (False,), "attention": ("full", "window")}
_BERT: AllowedValues = {
    **_WITH_LAYERNORM, "objective": ("masked",), "norm_position": ("post",), "embedding_norm": (True,),
    "tie_embeddings": (True,), "output_bias": (True, False),
}  # fmt: skip


def _without(allowed: AllowedValues, *names: str) -> AllowedValues:
    return {name: values for name, values in allowed.items() if name not in names}


ARCHITECTURES: Mapping[str, AllowedValues] = {
    "GPT2LMHeadModel": _WITH_LAYERNORM,
    "GPTNeoXForCausalLM": {
        **_without(_WITH_LAYERNORM, "parallel_residual"), "positions": ("rotary",), "attention_bias": ("all", "none"),
    },
    "Qwen2ForCausalLM": _QWEN,
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": {**_QWEN, "attention_bias": ("none",), "attention": ("window",)},
    "Qwen3ForCausalLM": {**_QWEN, "qk_norm": (True,), "attention_bias": ("all", "none")},
    "BertForMaskedLM": {**_without(_BERT, "token_types"), "labels": ((),), "output_transform": (True,)},
    "BertForSequenceClassification": {
        **_without(_BERT, "token_types"), "tie_embeddings": (True, False), "output_transform": (True, False),
    },
    "MarianMTModel": {
        **_without(_COMMON, "n_encoder_layers", "scale_embeddings"), "is_encoder_decoder": (True,),
        "norm": ("layernorm",), "norm_eps": (1e-5,),
        **_without(_WITH_LAYERNORM, "n_encoder_layers", "scale_embeddings"), "norm_position": ("post",),
        "positions": ("sinusoidal-half",), "tie_embeddings": (True,), "source_vocab_size": (None,),
        "syntax": ("none",), "output_bias": (True, False),
    },
}  # fmt: skip
"""By the name of the class in transformers; llama.cpp and CTranslate2 have most of them too."""


def comparable_fields(config: ModelConfig) -> dict[str, Any]:
    """Return the fields to compare with `AllowedValues`; `n_kv_heads` and `d_head` are None at their defaults."""
    return {
        **{field.name: getattr(config, field.name) for field in fields(config)},
        "n_kv_heads": None if config.n_kv_heads == config.n_heads else config.n_kv_heads,
        "d_head": None if config.d_head is None or config.n_heads * config.d_head == config.d_model else config.d_head,
        "is_encoder_decoder": config.is_encoder_decoder,
    }


def differing_fields(config: ModelConfig, allowed: AllowedValues) -> list[str]:
    """Return the fields of a model whose values an architecture does not allow."""
    known = comparable_fields(config)
    return [name for name, values in allowed.items() if known[name] not in values]


def describe_fields(config: ModelConfig, names: Sequence[str], *, joined_by: str = " and ") -> str:
    """Format fields with their values, for messages."""
    known = comparable_fields(config)
    return joined_by.join(f"{name} {known[name]}" for name in names)


def describe_unportable(config: ModelConfig) -> str:
    """Describe the fields that the nearest architecture does not allow; empty if a model fits one."""
    return describe_fields(
        config, min((differing_fields(config, allowed) for allowed in ARCHITECTURES.values()), key=len)
    )
