"""Marian's encoder-decoder of 2017 as in transformers (MarianMT)."""

from __future__ import annotations

from lm.config.portable_architectures import ARCHITECTURES
from lm.interop.hugging_face.family_schema import ACTIVATIONS, SEQ2SEQ_LM, Family, FieldMapping, Part

MARIAN = Family(
    model_type="marian",
    architecture="MarianMTModel",
    auto=SEQ2SEQ_LM,
    settings=(
        FieldMapping("vocab_size", "vocab_size", 58101),
        FieldMapping("max_position_embeddings", "context_length", 1024),
        FieldMapping("d_model", "d_model", 1024),
        FieldMapping("encoder_layers", "n_encoder_layers", 12),
        FieldMapping("decoder_layers", "n_layers", 12),
        FieldMapping("encoder_attention_heads", "n_heads", 16),
        FieldMapping("decoder_attention_heads", "n_heads", 16),
        FieldMapping("encoder_ffn_dim", "d_ff", 4096),
        FieldMapping("decoder_ffn_dim", "d_ff", 4096),
        FieldMapping("activation_function", "activation", "gelu", ACTIVATIONS),
        FieldMapping("scale_embedding", "scale_embeddings", False),
        FieldMapping("dropout", "dropout", 0.1),
        FieldMapping("attention_dropout", "attention_dropout", 0.0),
        FieldMapping("init_std", "init_std", 0.02),
    ),
    requires=ARCHITECTURES["MarianMTModel"],
    implies={
        "norm": "layernorm", "norm_position": "post", "norm_eps": 1e-5, "positions": "sinusoidal-half", "bias": True,
        "output_bias": True,
    },
    neutral={
        "is_encoder_decoder": (True,), "tie_word_embeddings": (True,), "share_encoder_decoder_embeddings": (True,),
        "normalize_before": (None, False), "normalize_embedding": (None, False), "add_final_layer_norm": (None, False),
        "add_bias_logits": (None, False), "static_position_embeddings": (None, True), "is_decoder": (None, False),
    },
    prefix="",
    outer={"embedding.tokens": "model.shared"},
    tensors={"output_bias": "final_logits_bias"},
    encoder_block="model.encoder.layers.{}.",
    block="model.decoder.layers.{}.",
    inner={
        "attention.input": Part(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        "attention.output": Part(("self_attn.out_proj",)),
        "attention_norm": Part(("self_attn_layer_norm",)),
        "cross_attention.input": Part(("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj")),
        "cross_attention.output": Part(("encoder_attn.out_proj",)),
        "cross_attention_norm": Part(("encoder_attn_layer_norm",)),
        "feed_forward.up": Part(("fc1",)),
        "feed_forward.down": Part(("fc2",)),
        "feed_forward_norm": Part(("final_layer_norm",)),
    },
    unused=("embed_positions.weight", "embed_tokens.weight"),
    has_biases=True,
)  # fmt: skip
