"""CTranslate2 model specifications: supported fields, and filling in weights.

A run as a folder that CTranslate2 runs: `Generator` what continues texts, `Translator` what translates.

model.bin                        the weights
config.json                      the tokens that start and end a text
vocabulary.json                  the tokens by id; of translation shared_vocabulary.json, or source_ and target_
tokenizer.json                   the tokenizer, which CTranslate2 leaves to others, and source_tokenizer.json if the
                                 source has its own

CTranslate2 reads and writes tokens as they are spelled. What a generator continues has to begin with the token that
starts a text; a translator puts the end of a source there by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.config.inference import ExportConfig
from lm.config.model import ModelConfig
from lm.errors import UsageError, missing_packages
from lm.interop.conversion import locate_tensor, split_tensor
from lm.interop.families import Allowed, Family, differing_fields, stack
from lm.model.positions import sinusoidal_table
from lm.run_folder import SOURCE_TOKENIZER, TOKENIZER
from lm.tokenizer import Tokenizer

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH"}
_CARRIED = (
    "vocab_size", "context_length", "d_model", "n_layers", "n_heads", "d_ff", "norm", "norm_position", "norm_eps",
    "rope_base", "bias", "tie_embeddings", "scale_embeddings", "output_bias",
)  # fmt: skip
_SUPPORTED: Allowed = dict.fromkeys(_CARRIED) | {
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary"), "activation": tuple(_ACTIVATIONS),
}  # fmt: skip
_DECODER: Allowed = dict.fromkeys(
    ("qk_norm", "n_kv_heads", "d_head", "rotary_fraction", "rope_factor", "attention_bias", "parallel_residual")
) | {"rope_scaling": ("none", "linear")}
_ENCODER_DECODER: Allowed = dict.fromkeys(("source_vocab_size", "n_encoder_layers"))
"""The fields that CTranslate2 supports, those of decoders and of encoder-decoders."""
_BANNED = -1e4  # a bias that float16 can hold
_MIN_POSITIONS = 2048
"""Minimum number of exported positions, if they are unlimited."""
_BLOCK = {
    "attention_norm": "self_attention.layer_norm", "attention.input": "self_attention.linear.0",
    "attention.output": "self_attention.linear.1", "attention.query_norm": "self_attention.q_norm",
    "attention.key_norm": "self_attention.k_norm", "feed_forward_norm": "ffn.layer_norm",
    "feed_forward.down": "ffn.linear_1", "cross_attention_norm": "attention.layer_norm",
    "cross_attention.input": "attention.linear.0 attention.linear.1", "cross_attention.output": "attention.linear.2",
}  # fmt: skip


def check_supported(config: ModelConfig) -> None:
    """Raise UsageError, naming the field, if CTranslate2 does not support a part of a model."""
    of_kind = _ENCODER_DECODER if config.is_encoder_decoder else _DECODER
    refused = differing_fields(config, {**_SUPPORTED, **of_kind})
    if config.parallel_residual and config.norm == "rmsnorm":
        refused["parallel_residual"] = True
    for name, value in refused.items():
        kind = "encoder-decoder" if config.is_encoder_decoder else "decoder"
        raise UsageError(f"CTranslate2 runs no {kind} with {name} {value!r}")


def create_specification(config: ModelConfig) -> Any:
    """Create an empty specification for a model; InputError without the package."""
    try:
        from ctranslate2.specs import attention_spec, common_spec, transformer_spec  # noqa: PLC0415 (optional)
    except ImportError:
        raise missing_packages("export to CTranslate2", "ctranslate2") from None
    blocks: dict[str, Any] = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rmsnorm",
    }
    if config.positions == "rotary":  # in self-attention only; where it is, nothing is added to the embeddings
        blocks |= {"rotary_dim": config.rotary_dim, "rotary_interleave": False, "rotary_base": config.rope_base}
        blocks["rotary_scaling_type"] = attention_spec.RotaryScalingType.Linear
        blocks["rotary_scaling_factor"] = config.rope_factor
    if config.is_encoder_decoder:
        return transformer_spec.TransformerSpec(
            transformer_spec.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **blocks),
            transformer_spec.TransformerDecoderSpec(config.n_layers, config.n_heads, **blocks),
        )
    blocks |= {"qk_norm": config.qk_norm, "parallel_residual": config.parallel_residual}
    blocks |= {"num_heads_kv": config.n_kv_heads, "head_dim": config.d_head}
    decoder = transformer_spec.TransformerDecoderSpec(
        config.n_layers, config.n_heads, with_encoder_attention=False, **blocks
    )
    return transformer_spec.TransformerDecoderModelSpec(decoder)


def fill_weights(spec: Any, weights: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Copy the weights of a model, in float32, into its specification."""
    spec.config.layer_norm_epsilon = config.norm_eps
    _set(spec, "decoder.projection.weight", weights.get("head.weight", weights["embedding.tokens.weight"]))
    family, outer = _family(config), ("head.", "embedding.", "source_embedding.")
    for name, value in weights.items():
        placement = locate_tensor(name, len(value), config, family) if not name.startswith(outer) else None
        for theirs, part in split_tensor(value, placement, config) if placement else ():
            if "norm" not in theirs:
                _set(spec, theirs, part)
                continue
            _set(spec, theirs.replace(".weight", ".gamma").replace(".bias", ".beta"), part)
            if config.norm == "layernorm" and not config.bias and "layer_norm" in theirs:
                _set(spec, theirs.replace(".weight", ".beta"), part.new_zeros(len(part)))
    own = "source_embedding" if config.source_vocab_size else "embedding"
    for stack_name, embedding in {"decoder": "embedding", "encoder": own}.items():
        if not hasattr(spec, stack_name):
            continue
        tables = "embeddings" if stack_name == "decoder" else "embeddings.0"
        _set(spec, f"{stack_name}.{tables}.weight", weights[f"{embedding}.tokens.weight"])
        getattr(spec, stack_name).scale_embeddings = config.scale_embeddings
        if config.positions != "rotary":
            length = config.position_limit or max(_MIN_POSITIONS, config.context_length)
            sinusoids = sinusoidal_table(length, config.d_model, interleaved=config.positions == "sinusoidal")
            table = weights.get(f"{embedding}.positions.weight", sinusoids)
            _set(spec, f"{stack_name}.position_encodings.encodings", table)


def _family(config: ModelConfig) -> Family:
    """Return the names of CTranslate2's layers, as attributes of a specification."""
    up = "ffn.linear_0 ffn.linear_0_noact" if config.activation == "swiglu" else "ffn.linear_0"
    block = {**_BLOCK, "feed_forward.up": up}
    if config.parallel_residual:
        block |= {"attention_norm": "input_layer_norm", "feed_forward_norm": "post_attention_layer_norm"}
    layers = {
        "output_bias": "decoder.projection.bias",
        **{f"{side}.final_norm": f"{side}.layer_norm" for side in ("encoder", "decoder")},
        **stack("encoder", "encoder.layer.#.", block), **stack("decoder", "decoder.layer.#.", block),
    }  # fmt: skip
    return Family("ctranslate2", "", sizes={}, options={}, allowed={}, layers=layers)


def _set(spec: Any, name: str, value: Tensor) -> None:
    """Set an attribute by its path, in which numbers are indexes."""
    *path, last = name.split(".")
    for part in path:
        spec = spec[int(part)] if part.isdecimal() else getattr(spec, part)
    setattr(spec, last, np.ascontiguousarray(value.detach().float().numpy()))


def export_with_report(run: Path, out: Path, config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, for CTranslate2, atomically."""
    folder = run_folder.find_checkpoint(run)
    model = run_folder.load_config(folder).model
    tokenizer, source_tokenizer = checkpoint.load_tokenizers(folder)
    spec = build_specification(model, checkpoint.load_weights(folder), tokenizer, source_tokenizer or tokenizer)
    spec.optimize(quantization=config.type)
    with files.atomic_new(out) as fresh:
        fresh.mkdir()
        spec.save(str(fresh))
        tokenizer.save(fresh / TOKENIZER)
        if source_tokenizer is not None:
            source_tokenizer.save(fresh / SOURCE_TOKENIZER)
    return {"model": f"for ctranslate2.{'Translator' if model.is_encoder_decoder else 'Generator'}, {config.type}"}


def build_specification(
    config: ModelConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer, source_tokenizer: Tokenizer
) -> Any:
    """Build CTranslate2's model specification with weights and vocabularies.

    A token that only starts targets, as in Marian models, is banned by its bias, as `lm translate` bans it.

    Raises:
        InputError: the package is not installed.
        UsageError: CTranslate2 does not support a part of the model or tokenizer.
    """
    check_supported(config)
    start, end = tokenizer.start_token, tokenizer.token(next(iter(tokenizer.stop_ids), -1))
    if start is None or end is None:
        raise UsageError("CTranslate2 needs a token that ends a text, and this tokenizer has none")
    spec = create_specification(config)
    if config.is_encoder_decoder and tokenizer.token_id(start) not in tokenizer.stop_ids:
        bias = weights.get("output_bias", torch.zeros(config.vocab_size)).float().clone()
        bias[tokenizer.token_id(start)] = _BANNED
        weights = {**weights, "output_bias": bias}
    fill_weights(spec, weights, config)
    spec.config.bos_token, spec.config.eos_token = start, end
    spec.config.unk_token = end if tokenizer.unknown is None else tokenizer.token(tokenizer.unknown)
    target = _token_names(tokenizer, config.vocab_size)
    if config.is_encoder_decoder:
        if source_tokenizer.end_of_text != source_tokenizer.token_id(end):
            raise UsageError(f"CTranslate2 ends source and target by one token, but {end} does not end a source")
        spec.config.decoder_start_token, spec.config.add_source_eos = start, True
        spec.register_source_vocabulary(_token_names(source_tokenizer, config.source_vocab_size or config.vocab_size))
        spec.register_target_vocabulary(target)
    else:
        spec.register_vocabulary(target)
    spec.validate()
    return spec


def _token_names(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return the tokens by ID, with unused names for unused IDs."""
    return [tokenizer.token(index) or f"<unused {index}>" for index in range(size)]
