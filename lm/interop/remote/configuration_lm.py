"""The settings of a model that was trained with lm, for Hugging Face's transformers."""

from __future__ import annotations

from typing import ClassVar

from transformers import PretrainedConfig, __version__

if not __version__.startswith("5."):
    raise ImportError(f"this model's code needs transformers 5, not {__version__}")


class LMConfig(PretrainedConfig):
    """The fields of config.json, whose meaning `lm info --help` and `lm train --help` say, and what follows from them.

    `frequencies`, `slopes` and `buckets` follow from the fields of the positions; this code reads no others of them.
    """

    model_type = "lm"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values", "cache"]
    attribute_map: ClassVar = {
        "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads", "head_dim": "d_head", "intermediate_size": "d_ff",
        "max_position_embeddings": "context_length", "tie_word_embeddings": "tie_embeddings",
        "initializer_range": "init_std",
    }  # fmt: skip
