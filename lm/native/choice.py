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
    from lm.native.decoder import NativeDecoder

_OVERHEAD, _READ, _MULTIPLIED = 1.5e-3, 1e10, 5e10
"""About what torch takes for a step, so that texts don't depend on a clock: seconds, bytes of weights that it reads a
second, and products that it makes."""
_MOST_TOKENS = 64
"""Tokens at a time up to which the compiled step was faster than torch's products."""
_TYPES = (torch.float32, torch.int8)

_decoders: WeakKeyDictionary[DecoderOnly | EncoderDecoder, NativeDecoder] = WeakKeyDictionary()


_KNOWN: Mapping[str, frozenset[object]] = {
    "attention": frozenset({"full", "window"}),
    "positions": frozenset({"learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "t5", "none"}),
    "rope_scaling": frozenset({"none", "linear", "llama3", "yarn"}),
    "attention_bias": frozenset({None, "none", "inputs", "all"}),
    "norm": frozenset({"layernorm", "rmsnorm"}),
    "norm_position": frozenset({"pre", "post"}),
    "activation": frozenset({"relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"}),
    "syntax": frozenset({"none", "depth", "distance", "both"}),
}
"""Values that the compiled step computes, or that matter to the encoder alone."""
_ANY = frozenset({
    "vocab_size", "source_vocab_size", "context_length", "d_model", "n_layers", "n_encoder_layers", "decoder_only",
    "n_heads", "n_kv_heads", "d_ff", "attention_window", "max_distance", "rope_base", "d_head", "rotary_share",
    "rope_factor", "rope_context", "rope_slow", "rope_fast", "rope_temperature", "parallel_residual", "norm_eps",
    "qk_norm", "bias", "dropout", "attention_dropout", "tie_embeddings", "scale_embeddings", "init_std", "zero_init",
    "softcap", "value_residual", "embedding_shortcut", "output_bias",
})  # fmt: skip
"""Fields of which it computes every value."""


def can_step(config: ModelConfig) -> bool:
    """Whether the compiled step computes all that a model has: of what it isn't known to, only the defaults."""
    return all(
        field.name in _ANY or getattr(config, field.name) in _KNOWN.get(field.name, {field.default})
        for field in fields(config)
    )


def native_decoder(model: DecoderOnly | EncoderDecoder, *, tokens: int) -> NativeDecoder | None:
    """The compiled step of a model that was loaded to be used; None where torch is to read the next tokens."""
    if tokens > _MOST_TOKENS and isinstance(model, DecoderOnly):
        return None
    found = _decoders.get(model)
    if found is not None and found.has_weights_of(model):
        return found
    if not (_is_possible(model) and compiled.serves(_plain_seconds(model, tokens))):
        return None
    _decoders[model] = load(model)
    return _decoders[model]


def load(model: DecoderOnly | EncoderDecoder) -> NativeDecoder:
    """The compiled step of a model, which is compiled now unless it is in the cache."""
    compiled.begin()
    from lm.native.decoder import NativeDecoder

    return NativeDecoder(model)


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
        and can_step(model.config)
        and not any(parameter.requires_grad for parameter in model.parameters())  # adapters may be trained alone
    )
