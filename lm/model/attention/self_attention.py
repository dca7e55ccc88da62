"""Which self-attention a layer has."""

from __future__ import annotations

from lm.config.model import ModelConfig
from lm.model.attention.attention import MultiHeadAttention
from lm.model.attention.compressed import CompressedAttention
from lm.model.attention.low_rank import LowRankAttention
from lm.model.attention.patterned import PatternedAttention
from lm.model.scope.patterns import pattern_of


def self_attention(config: ModelConfig, *, layer: int, is_causal: bool) -> MultiHeadAttention:
    """The self-attention of a layer, counted from 0 in its stack, which is causal but in an encoder."""
    if (pattern := pattern_of(config, layer, is_causal=is_causal)) is not None:
        return PatternedAttention(config, pattern, layer=layer)
    if config.compresses(layer):
        return CompressedAttention(config, layer=layer, is_causal=is_causal)
    if config.attention == "linformer" and not is_causal:
        return LowRankAttention(config, layer=layer)
    return MultiHeadAttention(config, layer=layer, value_residual=config.value_residual)
