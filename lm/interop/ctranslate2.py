"""Export of an encoder-decoder to CTranslate2, a C++ library that runs translation models.

Its model has no field for a sequence's special tokens: a source must be handed over with its end token, as the token
itself, and the decoder starts with the token that `start` names. The tokenizer is put beside the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention.attention import MultiHeadAttention
from lm.model.block import Block, Stack
from lm.model.feed_forward import FeedForward
from lm.model.positions.positions import Embedding
from lm.model.transformer import EncoderDecoder
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

_LEAST_POSITIONS = 2048
"""How many positions CTranslate2 is given at least, of those that go on without end."""

_POSITIONS = ("learned", "sinusoidal", "sinusoidal-half", "rotary")
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "swiglu": "SWISH"}

Array = npt.NDArray[np.float32]


def export(
    model: EncoderDecoder, folder: Path, *, tokenizer: Tokenizer, source_tokenizer: Tokenizer | None = None
) -> None:
    """Write a model that `ctranslate2.Translator` reads, in float32.

    Args:
        model: the model.
        folder: is made, or files in it replaced.
        tokenizer: of the target, and of the source unless that has its own.
        source_tokenizer: of the source.

    Raises:
        UsageError: CTranslate2 has nothing like a part of the model, or is not installed.
    """
    _check(model.config, tokenizer)
    spec = _specification(model.config)
    assert isinstance(model.encoder, Stack)
    assert isinstance(model.decoder, Stack)
    _set_stack(spec.encoder, model.encoder)
    _set_stack(spec.decoder, model.decoder)
    _set_embedding(spec.encoder, spec.encoder.embeddings[0], model.source_embedding or model.embedding, model.config)
    _set_embedding(spec.decoder, spec.decoder.embeddings, model.embedding, model.config)
    spec.decoder.projection.weight = _array(model.output_layer[0])
    source_size = model.config.source_vocab_size or model.config.vocab_size
    spec.register_source_vocabulary(_names(source_tokenizer or tokenizer, source_size))
    spec.register_target_vocabulary(_names(tokenizer, model.config.vocab_size))
    _set_special_tokens(spec.config, tokenizer)
    spec.config.layer_norm_epsilon = model.config.norm_eps
    folder.mkdir(parents=True, exist_ok=True)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    tokenizer.save(folder / FILE_NAME)
    if source_tokenizer is not None:
        source_tokenizer.save(folder / f"source_{FILE_NAME}")


def _check(config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Refuse what CTranslate2 cannot run."""
    refused = {
        "architecture": config.is_recurrent,
        "attention": config.attention != "full",
        "positions": config.positions not in _POSITIONS,
        "syntax": config.syntax != "none",
        "activation": config.activation not in _ACTIVATIONS,
        "qk_norm": config.qk_norm,
        "n_kv_heads": config.kv_heads != config.n_heads,
        "softcap": config.softcap > 0,
        "value_residual": config.value_residual,
        "embedding_shortcut": config.embedding_shortcut,
        "experts": config.experts > 0,
        "embedding_norm": config.embedding_norm,
        "output_transform": config.output_transform,
        "d_head": config.head_size * config.n_heads != config.d_model,
        "rotary_share": config.rotary_share != 1,
        "rope_scaling": config.rope_scaling != "none",
        "attention_bias": config.biased_attention != ("all" if config.bias else "none"),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise UsageError(f"CTranslate2 runs no encoder-decoder with {name} {getattr(config, name)!r}")
    if tokenizer.end_of_text is None:
        raise UsageError("CTranslate2 needs a token that ends a text, and this tokenizer has none")


def _specification(config: ModelConfig) -> Any:  # noqa: ANN401 (the package has no types)
    """CTranslate2's empty description of a model of this shape."""
    try:
        from ctranslate2.specs import common_spec, transformer_spec  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise UsageError("export to CTranslate2 needs its package: pip install ctranslate2") from None
    blocks: dict[str, Any] = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rmsnorm",
    }
    if config.positions == "rotary":  # in self-attention only; where it is, nothing is added to the embeddings
        blocks |= {"rotary_dim": config.head_size, "rotary_interleave": False, "rotary_base": config.rope_base}
    return transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **blocks),
        transformer_spec.TransformerDecoderSpec(config.n_layers, config.n_heads, **blocks),
    )


def _set_embedding(spec: Any, table: Any, embedding: Embedding, config: ModelConfig) -> None:  # noqa: ANN401
    table.weight = _array(embedding.tokens.weight)
    if embedding.positions is not None:
        spec.position_encodings.encodings = _positions(embedding.positions, embedding.tokens.weight, config)
    spec.scale_embeddings = config.scale_embeddings


def _set_special_tokens(spec: Any, tokenizer: Tokenizer) -> None:  # noqa: ANN401
    assert tokenizer.end_of_text is not None
    assert tokenizer.start_of_text is not None
    spec.bos_token = spec.decoder_start_token = tokenizer.token(tokenizer.start_of_text)
    spec.eos_token = spec.unk_token = tokenizer.token(tokenizer.end_of_text)


def _set_stack(spec: Any, stack: Stack) -> None:  # noqa: ANN401
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block)
        _set_norm(layer.self_attention.layer_norm, block.attention_norm)
        _set_attention(layer.self_attention, block.attention, parts=1)
        if block.cross_attention is not None and block.cross_attention_norm is not None:
            _set_norm(layer.attention.layer_norm, block.cross_attention_norm)
            _set_attention(layer.attention, block.cross_attention, parts=2)
        _set_norm(layer.ffn.layer_norm, block.feed_forward_norm)
        assert isinstance(block.feed_forward, FeedForward)
        _set_feed_forward(layer.ffn, block.feed_forward)
    if not isinstance(stack.final_norm, nn.Identity):
        _set_norm(spec.layer_norm, stack.final_norm)


def _set_norm(spec: Any, norm: nn.Module) -> None:  # noqa: ANN401
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    spec.gamma = _array(weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = np.zeros_like(spec.gamma) if bias is None else _array(bias)


def _set_attention(spec: Any, attention: MultiHeadAttention, *, parts: int) -> None:  # noqa: ANN401
    """One product for queries, keys and values, or, across, one for queries and one for the other two."""
    width = attention.heads * attention.head_size
    ends = [0, 3 * width] if parts == 1 else [0, width, 3 * width]
    for linear, start, end in zip(spec.linear, ends, ends[1:], strict=False):
        _set_linear(linear, attention.input, slice(start, end))
    _set_linear(spec.linear[-1], attention.output)


def _set_feed_forward(spec: Any, layer: FeedForward) -> None:  # noqa: ANN401
    width = layer.down.in_features
    _set_linear(spec.linear_0, layer.up, slice(0, width))
    if layer.up.out_features > width:  # a gate, which goes through the activation, and what it lets through
        _set_linear(spec.linear_0_noact, layer.up, slice(width, None))
    _set_linear(spec.linear_1, layer.down)


def _set_linear(spec: Any, linear: nn.Linear, rows: slice = slice(None)) -> None:  # noqa: ANN401
    spec.weight = _array(linear.weight[rows])
    if linear.bias is not None:
        spec.bias = _array(linear.bias[rows])


def _positions(positions: nn.Module, tokens: Tensor, config: ModelConfig) -> Array:
    """(positions, d_model)."""
    length = config.position_limit or max(_LEAST_POSITIONS, config.context_length)
    return _array(positions(0, length, tokens.device))


def _names(tokenizer: Tokenizer, size: int) -> list[str]:
    """The tokens by id; ids that no text has get a name that none has."""
    return [tokenizer.token(index) or f"<unused {index}>" for index in range(size)]


def _array(weight: Tensor) -> Array:
    array: Array = np.ascontiguousarray(weight.detach().float().cpu().numpy())
    return array
