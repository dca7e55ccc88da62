"""The cost of a model: parameters by part, training FLOPs, KV-cache bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from torch import Tensor

from lm.config.model import ModelConfig
from lm.config.run_config import LoraConfig
from lm.model import Model, init_empty_weights
from lm.model.lora import build_model_with_lora

_PARTS = {
    "lora_": "adapters", "transform.": "output transform", "classifier.": "label head", "head.": "output layer",
    "output_bias": "output bias", "norm": "norms", "scalars": "residual scalars", "tokens.": "token embeddings",
    "types": "token types", "positions": "positions", ".gate.": "gates", ".experts.": "experts",
    "feed_forward": "feed-forward", "cross_attention": "cross-attention", "attention": "attention",
    "recurrent": "recurrent layers",
}  # fmt: skip
"""The parts that parameters are counted by: the first that is found in a parameter's name."""
_NO_ADAPTERS = LoraConfig()


@lru_cache(maxsize=16)
def _meta_model(config: ModelConfig, lora: LoraConfig) -> Model:
    with init_empty_weights():
        return build_model_with_lora(config, lora)


@cache
def parameters_by_part(config: ModelConfig, lora: LoraConfig = _NO_ADAPTERS) -> Mapping[str, int]:
    """Count the parameters of each part that a model has, shared ones once."""
    counts = Counter[str]()
    for name, parameter in _meta_model(config, lora).named_parameters():
        counts[_part(name)] += parameter.numel()
    return counts


def _part(name: str) -> str:
    return next(part for found, part in _PARTS.items() if found in name)


def total_parameters(config: ModelConfig) -> int:
    """Count the parameters of a model, shared ones once."""
    return sum(parameters_by_part(config).values())


def active_parameters(config: ModelConfig) -> int:
    """Count the parameters that one token uses: of the experts of a layer, only `experts_per_token`."""
    idle = config.experts - config.experts_per_token
    parts = parameters_by_part(config)
    return sum(parts.values()) - (parts["experts"] * idle // config.experts if config.experts else 0)


def training_flops(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    source_length: int = 0,
    n_targets: float | None = None,
    forward_passes: int = 1,
    lora: LoraConfig = _NO_ADAPTERS,
) -> float:
    """Return the FLOPs of training on a batch, padding included: three times those of the forward pass.

    A multiply-accumulate (MAC) is two FLOPs. Each position takes one per weight of the matrices it passes, and each
    query-key pair two per feature of all heads. The output layer counts whether or not it is tied, but only for
    predicted positions. Biases and embedding look-ups count nothing. The backward pass takes twice as many as the
    forward pass, for a frozen matrix, which has no gradient, only as many.

    Args:
        length: positions of each, in an encoder-decoder those of the target.
        source_length: positions that the encoder reads.
        n_targets: positions per sequence, on average, that the output layer predicts [default: all].
        forward_passes: of the batch; R-Drop takes two.

    Source: Kaplan et al. 2020, section 2.1.
    """
    return 6.0 * forward_passes * rows * _forward_macs(config, lora, length, source_length, n_targets)


@lru_cache(maxsize=1024)
def _forward_macs(
    config: ModelConfig, lora: LoraConfig, length: int, source_length: int, n_targets: float | None
) -> float:
    model: Any = _meta_model(config, lora)
    n_targets = length if n_targets is None else n_targets
    own_length = {
        "embedding": 0, "source_embedding": 0, "head": n_targets, "classifier": n_targets, "encoder": source_length,
        "syntax_positions": source_length,
    }  # fmt: skip
    macs = 0.0
    for name, parameter in model.named_parameters():
        if name.startswith("ensemble."):  # counted as often as the first
            continue
        positions = own_length.get(name.partition(".")[0], length) * _uses_per_position(name, config)
        if parameter is model.output_layer[0]:
            positions = n_targets
        elif name.endswith("cross_attention.input.weight"):  # queries of the target; keys and values of the source
            queries = config.n_heads / (config.n_heads + 2 * config.n_kv_heads)
            positions = queries * length + (1 - queries) * source_length
        elif name.endswith("cross_attention.key.weight"):
            positions = source_length
        macs += _macs(parameter) * positions
    macs += _pair_macs(model.decoder, length)
    macs += _pair_macs(model.encoder, source_length) if config.is_encoder_decoder else 0.0
    cross_layers = model.decoder.attention_layers(cross=True)
    macs += sum(2 * layer.heads * layer.head_size * length * source_length for layer in cross_layers)
    return config.members * macs


def _uses_per_position(name: str, config: ModelConfig) -> float:
    """Return how often a position uses each weight of a matrix."""
    if ".experts." in name:
        return config.experts_per_token / config.experts
    if "_convolution" in name:
        return 1 / config.attention_stride
    if "_lengthwise" in name:
        return config.n_kv_heads * config.d_head / config.context_length
    if name.endswith((".keys", ".values")):  # a head multiplies by all of its group
        return config.n_heads / config.n_kv_heads
    return 0.0 if ".recurrent_start." in name else 1.0  # once per sequence


def _macs(weight: Tensor) -> float:
    """Return the multiply-accumulates per position of a matrix, 0 of a vector.

    A frozen matrix counts 2/3: of forward and backward passes it lacks its own gradient.
    """
    macs = weight.numel() if weight.ndim > 1 else 0
    return macs if weight.requires_grad else macs * 2 / 3


def _pair_macs(stack: Any, length: int) -> float:
    """Return the MACs of query-key and weight-value products of self-attention; recurrent layers have none."""
    layers = stack.attention_layers()
    pairs = sum(layer.count_query_key_pairs(length, is_causal=stack.is_causal) for layer in layers)
    return 2 * layers[0].heads * layers[0].head_size * pairs if layers else 0.0


def training_flops_per_token(
    config: ModelConfig, *, predicted_fraction: float = 1.0, forward_passes: int = 1, lora: LoraConfig = _NO_ADAPTERS
) -> float:
    """Return the training FLOPs per target token, for sequences (and sources) as long as the context.

    For a masked model it is per input token, of which `predicted_fraction` are predicted; a classifier predicts once
    per sequence.
    """
    length = config.context_length
    return training_flops(
        config, rows=1, length=length, source_length=length if config.is_encoder_decoder else 0,
        n_targets=1.0 if config.labels else predicted_fraction * length, forward_passes=forward_passes, lora=lora,
    ) / length  # fmt: skip


def cache_bytes_per_token(config: ModelConfig, *, bytes_per_value: int = 4) -> int:
    """Return the KV-cache bytes per token of one sequence."""
    if config.is_masked or config.is_recurrent or config.attention == "compressed":
        return 0
    return 2 * config.members * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_value
