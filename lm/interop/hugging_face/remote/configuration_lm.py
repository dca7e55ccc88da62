"""The settings of a model that was trained with lm, for Hugging Face's transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig, __version__

if not __version__.startswith("5."):
    raise ImportError(f"this model's code needs transformers 5, not {__version__}")


class LMConfig(PretrainedConfig):
    """One block, whose parts are chosen by these fields; `lm info --help` and `lm train --help` say what each means."""

    model_type = "lm"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values", "cache"]
    attribute_map: ClassVar = {
        "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads", "head_dim": "d_head", "intermediate_size": "d_ff",
        "max_position_embeddings": "context_length", "tie_word_embeddings": "tie_embeddings",
        "initializer_range": "init_std",
    }  # fmt: skip

    objective: str = "causal"
    vocab_size: int = 256
    context_length: int = 256
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 4
    d_head: int = 64
    d_ff: int = 704
    attention: str = "full"
    attention_window: Any = None
    attention_bias: str = "none"
    qk_norm: bool = False
    value_residual: bool = False
    positions: str = "rotary"
    max_distance: Any = None
    rope_base: float = 10_000.0
    rotary_fraction: float = 1.0
    rotary_scaling: str = "none"
    rope_factor: Any = None
    rope_context: Any = None
    rope_slow: Any = None
    rope_fast: Any = None
    rope_temperature: Any = None
    norm: str = "rmsnorm"
    norm_position: str = "pre"
    norm_eps: float = 1e-5
    activation: str = "swiglu"
    bias: bool = False
    parallel_residual: bool = False
    embedding_norm: bool = False
    scale_embeddings: bool = False
    tie_embeddings: bool = True
    token_types: int = 0
    output_transform: bool = False
    output_bias: bool = False
    softcap: float = 0.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02
