"""CTranslate2's description of a model, empty, and what it has no description for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lm.config.model import ModelConfig
from lm.errors import InputError, UsageError
from lm.interop.hugging_face.configuration import facts

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH"}
_NOWHERE: Mapping[str, tuple[Any, ...]] = {
    "architecture": ("transformer",), "decoder_only": (False,), "objective": ("causal",), "attention": ("full",),
    "positions": ("learned", "sinusoidal", "sinusoidal-half", "rotary"), "syntax": ("none",),
    "activation": tuple(_ACTIVATIONS), "softcap": (0,), "value_residual": (False,), "embedding_shortcut": (False,),
    "experts": (0,), "embedding_norm": (False,), "output_transform": (False,), "token_types": (0,),
}  # fmt: skip
"""What CTranslate2 runs, of the fields in which ours can be more."""
_IN_DECODERS: Mapping[str, tuple[Any, ...]] = {"rope_scaling": ("none", "linear")}
_IN_ENCODER_DECODERS: Mapping[str, tuple[Any, ...]] = {
    "qk_norm": (False,), "n_kv_heads": (None,), "d_head": (None,), "rotary_share": (1,), "rope_scaling": ("none",),
}  # fmt: skip


def check(config: ModelConfig) -> None:
    """UsageError if CTranslate2 has nothing like a part of a model; the message names the field."""
    allowed = {**_NOWHERE, **(_IN_ENCODER_DECODERS if config.is_encoder_decoder else _IN_DECODERS)}
    known = facts(config)
    refused = [name for name, values in allowed.items() if known[name] not in values]
    if config.is_encoder_decoder and config.attention_bias != ("all" if config.bias else "none"):
        refused.append("attention_bias")
    if config.parallel_residual and config.norm == "rmsnorm":
        refused.append("parallel_residual")
    if refused:
        kind = "encoder-decoder" if config.is_encoder_decoder else "decoder"
        problem = f"CTranslate2 runs no {kind} with {refused[0]} {known[refused[0]]!r}"
        if config.n_encoder_layers:
            raise UsageError(problem)
        raise UsageError(f"{problem}: train one without to export it", settings=["portable"])


def specification(config: ModelConfig) -> Any:  # noqa: ANN401 (the package has no types)
    """CTranslate2's empty description of a model of this shape; InputError without the package."""
    try:
        from ctranslate2.specs import transformer_spec  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise InputError("export to CTranslate2 needs its package: pip install 'lm-toolkit[ctranslate2]'") from None
    blocks = _blocks(config)
    if not config.is_encoder_decoder:
        spec = transformer_spec.TransformerDecoderSpec(
            config.n_layers, config.n_heads, with_encoder_attention=False, **blocks, **_of_decoders(config)
        )
        return transformer_spec.TransformerDecoderModelSpec(spec)
    return transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.n_encoder_layers, config.n_heads, **blocks),
        transformer_spec.TransformerDecoderSpec(config.n_layers, config.n_heads, **blocks),
    )


def _blocks(config: ModelConfig) -> dict[str, Any]:
    """What is said of the blocks of any stack."""
    from ctranslate2.specs import common_spec  # noqa: PLC0415 (an optional dependency)

    blocks: dict[str, Any] = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rmsnorm",
    }
    if config.positions == "rotary":  # in self-attention only; where it is, nothing is added to the embeddings
        blocks |= {"rotary_dim": config.rotated, "rotary_interleave": False, "rotary_base": config.rope_base}
    return blocks


def _of_decoders(config: ModelConfig) -> dict[str, Any]:
    """What is said of the blocks of a model that continues texts, beside that."""
    from ctranslate2.specs.attention_spec import RotaryScalingType  # noqa: PLC0415 (an optional dependency)

    more: dict[str, Any] = {"qk_norm": config.qk_norm, "parallel_residual": config.parallel_residual}
    if config.n_kv_heads != config.n_heads:
        more["num_heads_kv"] = config.n_kv_heads
    if config.n_heads * config.d_head != config.d_model:
        more["head_dim"] = config.d_head
    if config.rope_scaling == "linear":
        more |= {"rotary_scaling_type": RotaryScalingType.Linear, "rotary_scaling_factor": config.rope_factor or 1.0}
    return more
