"""Whether a model's next positions are computed by the compiled step: where that is possible, ready and worth it."""

from __future__ import annotations

import math
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


def can_step(config: ModelConfig) -> bool:
    """Whether the compiled step knows all that a model has."""
    return (
        not (config.is_masked or config.is_recurrent or config.experts)
        and config.attention in {"full", "window"}
        and config.positions != "relative"
        and not config.output_transform
        and not config.embedding_norm
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
        and not first.requires_grad
        and can_step(model.config)
    )
