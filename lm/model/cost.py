"""What a model costs: parameters by part, arithmetic per token, memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from lm.config import ModelConfig
from lm.model.block import count_parameters
from lm.model.transformer import build_model


@cache
def parameters_by_part(config: ModelConfig) -> Mapping[str, int]:
    """Parameters of each part of a model, shared ones once: embeddings, attention, feed-forward, norms, output."""
    with torch.device("meta"):
        model = build_model(config)
    parts = dict.fromkeys(
        ("token embeddings", "positions", "attention", "cross-attention", "feed-forward", "norms", "output layer"), 0
    )
    for name, parameter in model.named_parameters():
        parts[_part(name)] += parameter.numel()
    assert sum(parts.values()) == count_parameters(model)
    return parts


def _part(name: str) -> str:
    if "norm" in name:
        return "norms"
    if "cross_attention" in name:
        return "cross-attention"
    if "attention" in name:
        return "attention"
    if "feed_forward" in name:
        return "feed-forward"
    if "positions" in name:
        return "positions"
    return "output layer" if name.startswith("head") else "token embeddings"


def training_flops_per_token(config: ModelConfig) -> float:
    """Arithmetic of training on one token: 6 × the parameters of all matrix products + 6 × layers × d_model × context.

    The output layer counts as a matrix whether or not it is tied; the embedding look-up is none.

    Source: Kaplan et al. 2020, section 2.1, with causal attention counted over the half that it sees.
    """
    parts = parameters_by_part(config)
    matrices = (
        parts["attention"] + parts["cross-attention"] + parts["feed-forward"] + config.vocab_size * config.d_model
    )
    layers = config.n_layers + config.n_encoder_layers
    return 6.0 * matrices + 6.0 * layers * config.d_model * config.context_length


def training_bytes(config: ModelConfig) -> int:
    """Memory for weights, gradients and AdamW's two moments in float32; activations come on top."""
    return 16 * sum(parameters_by_part(config).values())


def cache_bytes_per_token(config: ModelConfig, *, bytes_per_value: int = 4) -> int:
    """Memory of the key/value cache for one token of one sequence."""
    return 2 * config.n_layers * config.kv_heads * config.head_size * bytes_per_value
