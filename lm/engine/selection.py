"""Whether a model's next positions are computed by the compiled step: where that is possible, ready and worth it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from lm.config.model import ModelConfig
from lm.kernels import compiled
from lm.model.block import count_parameters
from lm.model.transformer import DecoderOnly, EncoderDecoder

if TYPE_CHECKING:
    from lm.engine.compiled.decoder import CompiledDecoder

_OVERHEAD, _READ, _MULTIPLIED = 1.5e-3, 1e10, 5e10
"""About what torch takes for a step, so that texts don't depend on a clock: seconds, bytes of weights that it reads a
second, and products that it makes."""
_MOST_TOKENS = 64
"""Tokens at a time up to which the compiled step was faster than torch's products."""
_TYPES = (torch.float32, torch.int8)

_decoders: WeakKeyDictionary[DecoderOnly | EncoderDecoder, CompiledDecoder] = WeakKeyDictionary()


ANY = object()
"""In a declaration: every value of the field."""

_SHAPE = (
    "vocab_size", "source_vocab_size", "context_length", "d_model", "n_layers", "decoder_only", "n_heads", "n_kv_heads",
    "d_ff", "attention_window", "max_distance", "rope_base", "d_head", "rotary_share", "rope_factor", "rope_context",
    "rope_slow", "rope_fast", "rope_temperature", "parallel_residual", "norm_eps", "qk_norm", "bias", "dropout",
    "attention_dropout", "tie_embeddings", "scale_embeddings", "init_std", "zero_init", "softcap", "value_residual",
    "embedding_shortcut", "output_bias",
)  # fmt: skip
"""Fields of which both compiled code and CUDA graphs compute every value."""
_PLAIN = {"architecture": {"transformer"}, "attention": {"full", "window"}, "objective": {"causal"}, "experts": {0}}
"""What both need: a step of fixed shapes, of blocks."""

COMPILED: Mapping[str, object] = {
    **dict.fromkeys(_SHAPE, ANY),
    **_PLAIN,
    "n_encoder_layers": ANY,
    "syntax": ANY,  # of the encoder alone, which PyTorch runs
    "positions": {"learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "t5", "none"},
    "rope_scaling": {"none", "linear", "llama3", "yarn"},
    "attention_bias": {None, "none", "inputs", "all"},
    "norm": {"layernorm", "rmsnorm"},
    "norm_position": {"pre", "post"},
    "activation": {"relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"},
    "labels": {()},
    "recurrent_attention": {None},
    "attention_block": {None},
    "global_blocks": {None},
    "random_blocks": {None},
    "attention_rank": {None},
    "attention_stride": {None},
    "experts_per_token": {1},
    "expert_every": {1},
    "expert_capacity": {0.0},
    "gate_noise": {0.0},
    "embedding_norm": {False},
    "token_types": {0},
    "output_transform": {False},
}
"""For every field of `ModelConfig`, the values that the compiled engine computes."""

CUDA_GRAPH: Mapping[str, object] = {
    **dict.fromkeys(COMPILED, ANY),  # the graph replays PyTorch's own kernels
    **_PLAIN,
    "n_encoder_layers": {0},
}
"""For every field of `ModelConfig`, the values of which a step can be recorded: those with fixed shapes."""


def unsupported(config: ModelConfig, declared: Mapping[str, object]) -> str | None:
    """The first setting of a model that an engine does not support, as `field=value`; None if it supports all.

    Args:
        config: of the model.
        declared: `COMPILED` or `CUDA_GRAPH`; a field that is missing supports nothing.
    """
    for field in fields(config):
        value, values = getattr(config, field.name), declared.get(field.name, frozenset())
        if values is not ANY and value not in values:  # type: ignore[operator]
            return f"{field.name}={value}"
    return None


def native_decoder(model: DecoderOnly | EncoderDecoder, *, tokens: int) -> CompiledDecoder | None:
    """The compiled step of a model that was loaded to be used; None where torch is to read the next tokens."""
    if tokens > _MOST_TOKENS and isinstance(model, DecoderOnly):
        return None
    found = _decoders.get(model)
    if found is not None and found.has_weights_of(model):
        return found
    if not (_is_possible(model) and compiled.serves(_plain_seconds(model, tokens))):
        return None
    compiled.begin()
    from lm.engine.compiled.decoder import CompiledDecoder

    _decoders[model] = CompiledDecoder(model)
    return _decoders[model]


def _plain_seconds(model: DecoderOnly | EncoderDecoder, tokens: int) -> float:
    """What torch takes for a step; without end with 8 bits, whose products compiled code makes from the first on."""
    weights, _ = model.output_layer
    if weights.dtype is torch.int8:
        return math.inf
    bytes_, products = torch.float32.itemsize * count_parameters(model), tokens * count_parameters(model)
    return _OVERHEAD + max(bytes_ / _READ, products / _MULTIPLIED)


def _is_possible(model: DecoderOnly | EncoderDecoder) -> bool:
    """Whether the weights are on the CPU, of a type that is known, and not being trained, which could move them."""
    weights, _ = model.output_layer
    first = next(model.parameters())
    return (
        weights.dtype in _TYPES
        and first.device.type == "cpu"
        and first.dtype is torch.float32
        and unsupported(model.config, COMPILED) is None
        and not any(parameter.requires_grad for parameter in model.parameters())  # adapters may be trained alone
    )
