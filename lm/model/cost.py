"""The cost of a model: parameters by part, training FLOPs, KV-cache bytes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from torch import nn

from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.model import module
from lm.model.lora import build_model_with_lora
from lm.model.module import Module, count_macs
from lm.model.transformer import EncoderDecoder, EncoderOnly, Model, count_parameters, init_empty_weights

PARTS = (
    "token embeddings", "token types", "positions", "attention", "cross-attention", "feed-forward", "gates", "experts",
    "recurrent layers", "norms", "residual scalars", "output layer", "output bias", "output transform", "label head",
    "adapters",
)  # fmt: skip
"""The parts that parameters are counted by; see `Module.part`."""
_NO_ADAPTERS = LoraConfig()


@lru_cache(maxsize=16)
def _meta_model(config: ModelConfig, lora: LoraConfig) -> Model:
    with init_empty_weights():
        return build_model_with_lora(config, lora)


@cache
def parameters_by_part(config: ModelConfig, lora: LoraConfig = _NO_ADAPTERS) -> Mapping[str, int]:
    """Count the parameters of each of `PARTS`, shared ones once."""
    model = _meta_model(config, lora)
    counts = module.parameters_by_part(model)
    assert counts.keys() <= set(PARTS)
    assert counts.total() == count_parameters(model)
    return {part: counts[part] for part in PARTS}


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
    model = _meta_model(config, lora)
    decoder: Any = model.decoder
    cross_layers = decoder.attention_layers(cross=True)
    of_source = sum(layer.macs_per_source_position() for layer in cross_layers)
    macs = length * (_macs_per_position(decoder) - of_source) + _pair_macs(decoder, length)
    macs += sum(2 * layer.heads * layer.head_size * length * source_length for layer in cross_layers)
    if model.transform is not None:
        macs += length * _macs_per_position(model.transform)
    if isinstance(model, EncoderDecoder):
        syntax = 0.0 if model.syntax_positions is None else _macs_per_position(model.syntax_positions)
        macs += source_length * (_macs_per_position(model.encoder) + syntax + of_source)
        macs += _pair_macs(model.encoder, source_length)
    head = model.classifier if isinstance(model, EncoderOnly) else None
    per_target = count_macs(model.output_layer[0]) if head is None else _macs_per_position(head)
    return macs + (length if n_targets is None else n_targets) * per_target


def _macs_per_position(module: nn.Module) -> float:
    own = module.own_macs() if isinstance(module, Module) else sum(map(count_macs, module.parameters(recurse=False)))
    return getattr(module, "uses", 1.0) * (own + sum(map(_macs_per_position, module.children())))


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
    source_length = length if config.is_encoder_decoder else 0
    outputs = 1.0 if config.labels else predicted_fraction * length
    flops = training_flops(
        config,
        rows=1,
        length=length,
        source_length=source_length,
        n_targets=outputs,
        forward_passes=forward_passes,
        lora=lora,
    )
    return flops / length


def cache_bytes_per_token(config: ModelConfig, *, bytes_per_value: int = 4) -> int:
    """Return the KV-cache bytes per token of one sequence."""
    if config.is_masked or config.is_recurrent or config.attention == "compressed":
        return 0
    return 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_value
