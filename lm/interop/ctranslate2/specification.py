"""CTranslate2 model specifications: supported fields, and filling in weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.config.portable_architectures import AllowedValues, comparable_fields, differing_fields
from lm.errors import UsageError, missing_packages
from lm.model.attention import MultiHeadAttention
from lm.model.layers import FeedForward
from lm.model.positions import InputEmbedding
from lm.model.transformer import Block, DecoderOnly, EncoderDecoder, Stack

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH"}
_SUPPORTED: AllowedValues = {
    "architecture": ("transformer",), "decoder_only": (False,), "objective": ("causal",), "attention": ("full",),
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary"), "syntax": ("none",),
    "activation": tuple(_ACTIVATIONS), "softcap": (0,), "value_residual": (False,), "embedding_shortcut": (False,),
    "experts": (0,), "embedding_norm": (False,), "output_transform": (False,), "token_types": (0,),
}  # fmt: skip
"""The field values that CTranslate2 supports."""
_SUPPORTED_IN_DECODERS: AllowedValues = {"rope_scaling": ("none", "linear")}
_SUPPORTED_IN_ENCODER_DECODERS: AllowedValues = {
    "qk_norm": (False,), "n_kv_heads": (None,), "d_head": (None,), "rotary_fraction": (1,), "rope_scaling": ("none",),
}  # fmt: skip


def check_supported(config: ModelConfig) -> None:
    """Raise UsageError, naming the field, if CTranslate2 does not support a part of a model."""
    allowed = {
        **_SUPPORTED,
        **(_SUPPORTED_IN_ENCODER_DECODERS if config.is_encoder_decoder else _SUPPORTED_IN_DECODERS),
    }
    refused = differing_fields(config, allowed)
    if config.is_encoder_decoder and config.attention_bias != ("all" if config.bias else "none"):
        refused.append("attention_bias")
    if config.parallel_residual and config.norm == "rmsnorm":
        refused.append("parallel_residual")
    if refused:
        kind = "encoder-decoder" if config.is_encoder_decoder else "decoder"
        problem = f"CTranslate2 runs no {kind} with {refused[0]} {comparable_fields(config)[refused[0]]!r}"
        if config.n_encoder_layers:
            raise UsageError(problem)
        raise UsageError(f"{problem}: train one without to export it", settings=["portable"])


def create_specification(config: ModelConfig) -> Any:
    """Create an empty specification for a model; InputError without the package."""
    try:
        from ctranslate2.specs import transformer_spec  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise missing_packages("export to CTranslate2", "ctranslate2") from None
    blocks = _block_settings(config)
    if not config.is_encoder_decoder:
        spec = transformer_spec.TransformerDecoderSpec(
            config.n_layers, config.n_heads, with_encoder_attention=False, **blocks, **_decoder_settings(config)
        )
        return transformer_spec.TransformerDecoderModelSpec(spec)
    return transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **blocks),
        transformer_spec.TransformerDecoderSpec(config.n_layers, config.n_heads, **blocks),
    )


def _block_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the settings of the blocks of any stack."""
    from ctranslate2.specs import common_spec  # noqa: PLC0415 (an optional dependency)

    blocks: dict[str, Any] = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rmsnorm",
    }
    if config.positions == "rotary":  # in self-attention only; where it is, nothing is added to the embeddings
        blocks |= {"rotary_dim": config.rotary_dim, "rotary_interleave": False, "rotary_base": config.rope_base}
    return blocks


def _decoder_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the further settings of decoder-only blocks."""
    from ctranslate2.specs.attention_spec import RotaryScalingType  # noqa: PLC0415 (an optional dependency)

    more: dict[str, Any] = {"qk_norm": config.qk_norm, "parallel_residual": config.parallel_residual}
    if config.n_kv_heads != config.n_heads:
        more["num_heads_kv"] = config.n_kv_heads
    if config.n_heads * config.d_head != config.d_model:
        more["head_dim"] = config.d_head
    if config.rope_scaling == "linear":
        more |= {"rotary_scaling_type": RotaryScalingType.Linear, "rotary_scaling_factor": config.rope_factor}
    return more


_MIN_POSITIONS = 2048
"""Minimum number of exported positions, if they are unlimited."""

Array = npt.NDArray[np.float32]


def fill_weights(spec: Any, model: DecoderOnly | EncoderDecoder) -> None:
    """Copy the weights of a model, in float32, into its specification."""
    assert isinstance(model.decoder, Stack)
    _set_stack(spec.decoder, model.decoder)
    _set_embedding(spec.decoder, spec.decoder.embeddings, model.embedding, model.config)
    _set_matrix(spec.decoder.projection, *model.output_layer)
    spec.config.layer_norm_epsilon = model.config.norm_eps
    if isinstance(model, EncoderDecoder):
        assert isinstance(model.encoder, Stack)
        embedding = model.source_embedding or model.embedding
        _set_stack(spec.encoder, model.encoder)
        _set_embedding(spec.encoder, spec.encoder.embeddings[0], embedding, model.config)


def _set_embedding(spec: Any, table: Any, embedding: InputEmbedding, config: ModelConfig) -> None:
    table.weight = _to_array(embedding.tokens.weight)
    if embedding.positions is not None:
        spec.position_encodings.encodings = _position_table(embedding.positions, embedding.tokens.weight, config)
    spec.scale_embeddings = config.scale_embeddings


def _set_stack(spec: Any, stack: Stack) -> None:
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block)
        _set_norms(layer, block)
        _set_attention(layer.self_attention, block.attention, parts=1)
        if block.cross_attention is not None and block.cross_attention_norm is not None:
            _set_norm(layer.attention.layer_norm, block.cross_attention_norm)
            _set_attention(layer.attention, block.cross_attention, parts=2)
        assert isinstance(block.feed_forward, FeedForward)
        _set_feed_forward(layer.ffn, block.feed_forward)
    if not isinstance(stack.final_norm, nn.Identity):
        _set_norm(spec.layer_norm, stack.final_norm)


def _set_norms(layer: Any, block: Block) -> None:
    """Set the norms of self-attention and feed-forward layer, which with parallel residuals may be shared."""
    if block.is_parallel:
        _set_norm(layer.input_layer_norm, block.attention_norm)
        _set_norm(layer.post_attention_layer_norm, block.feed_forward_norm)
    else:
        _set_norm(layer.self_attention.layer_norm, block.attention_norm)
        _set_norm(layer.ffn.layer_norm, block.feed_forward_norm)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    spec.gamma = _to_array(weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = np.zeros_like(spec.gamma) if bias is None else _to_array(bias)


def _set_attention(spec: Any, attention: MultiHeadAttention, *, parts: int) -> None:
    """Set one matrix for queries, keys and values or, in cross-attention, one for queries and one for the others."""
    queries, everything = attention.input.projected[0], attention.input.out_features
    ends = [0, everything] if parts == 1 else [0, queries, everything]
    for linear, start, end in zip(spec.linear, ends, ends[1:], strict=False):
        _set_linear(linear, attention.input, slice(start, end))
    _set_linear(spec.linear[-1], attention.output)
    if attention.query_norm is not None and attention.key_norm is not None:
        _set_norm(spec.q_norm, attention.query_norm)
        _set_norm(spec.k_norm, attention.key_norm)


def _set_feed_forward(spec: Any, layer: FeedForward) -> None:
    width = layer.down.in_features
    _set_linear(spec.linear_0, layer.up, slice(0, width))
    if layer.up.out_features > width:  # a gate, which goes through the activation, and what it lets through
        _set_linear(spec.linear_0_noact, layer.up, slice(width, None))
    _set_linear(spec.linear_1, layer.down)


def _set_linear(spec: Any, linear: nn.Linear, rows: slice = slice(None)) -> None:
    _set_matrix(spec, linear.weight[rows], None if linear.bias is None else linear.bias[rows])


def _set_matrix(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _to_array(weight)
    if bias is not None:
        spec.bias = _to_array(bias)


def _position_table(positions: nn.Module, tokens: Tensor, config: ModelConfig) -> Array:
    """Return (positions, d_model)."""
    length = config.position_limit or max(_MIN_POSITIONS, config.context_length)
    return _to_array(positions(0, length, tokens.device))


def _to_array(weight: Tensor) -> Array:
    array: Array = np.ascontiguousarray(weight.detach().float().cpu().numpy())
    return array
