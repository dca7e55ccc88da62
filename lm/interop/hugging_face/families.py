"""The supported families of transformers models, each as data for both export and import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lm.config.portable_architectures import ARCHITECTURES
from lm.interop.hugging_face.family_schema import (
    ACTIVATIONS,
    MASKED_LM,
    SEQ2SEQ_LM,
    SEQUENCE_CLASSIFICATION,
    Family,
    FieldMapping,
    Part,
    Rotary,
    WindowStyle,
)

_ALL_OR_NONE = {True: "all", False: "none"}
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    settings=(
        FieldMapping("vocab_size", "vocab_size", 50257),
        FieldMapping("n_positions", "context_length", 1024),
        FieldMapping("n_embd", "d_model", 768),
        FieldMapping("n_layer", "n_layers", 12),
        FieldMapping("n_head", "n_heads", 12),
        FieldMapping("n_inner", "d_ff"),
        FieldMapping("activation_function", "activation", "gelu_new", ACTIVATIONS),
        FieldMapping("layer_norm_epsilon", "norm_eps", 1e-5),
        FieldMapping("tie_word_embeddings", "tie_embeddings", True),
        FieldMapping("embd_pdrop", "dropout", 0.1),
        FieldMapping("resid_pdrop", "dropout", 0.1),
        FieldMapping("attn_pdrop", "attention_dropout", 0.1),
        FieldMapping("initializer_range", "init_std", 0.02),
    ),
    requires=ARCHITECTURES["GPT2LMHeadModel"],
    implies={"norm": "layernorm", "positions": "learned", "bias": True},
    neutral={
        "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
    },
    prefix="transformer.",
    outer={"embedding.tokens": "wte", "embedding.positions": "wpe", "decoder.final_norm": "ln_f"},
    block="h.{}.",
    inner={
        "attention_norm": Part(("ln_1",)),
        "attention.input": Part(("attn.c_attn",), "transposed"),
        "attention.output": Part(("attn.c_proj",), "transposed"),
        "feed_forward_norm": Part(("ln_2",)),
        "feed_forward.up": Part(("mlp.c_fc",), "transposed"),
        "feed_forward.down": Part(("mlp.c_proj",), "transposed"),
    },
    unused=(".attn.bias", ".attn.masked_bias"),
    has_biases=True,
)  # fmt: skip

GPT_NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    settings=(
        FieldMapping("vocab_size", "vocab_size", 50432),
        FieldMapping("max_position_embeddings", "context_length", 2048),
        FieldMapping("hidden_size", "d_model", 6144),
        FieldMapping("num_hidden_layers", "n_layers", 44),
        FieldMapping("num_attention_heads", "n_heads", 64),
        FieldMapping("intermediate_size", "d_ff", 24576),
        FieldMapping("hidden_act", "activation", "gelu", ACTIVATIONS),
        FieldMapping("layer_norm_eps", "norm_eps", 1e-5),
        FieldMapping("use_parallel_residual", "parallel_residual", True),
        FieldMapping("attention_bias", "attention_bias", True, _ALL_OR_NONE),
        FieldMapping("tie_word_embeddings", "tie_embeddings", False),
        FieldMapping("hidden_dropout", "dropout", 0.0),
        FieldMapping("attention_dropout", "attention_dropout", 0.0),
        FieldMapping("initializer_range", "init_std", 0.02),
    ),
    requires=ARCHITECTURES["GPTNeoXForCausalLM"],
    implies={"norm": "layernorm", "positions": "rotary", "bias": True},
    prefix="gpt_neox.",
    outer={"embedding.tokens": "embed_in", "decoder.final_norm": "final_layer_norm"},
    block="layers.{}.",
    inner={
        "attention_norm": Part(("input_layernorm",)),
        "attention.input": Part(("attention.query_key_value",), "by head"),
        "attention.output": Part(("attention.dense",)),
        "feed_forward_norm": Part(("post_attention_layernorm",)),
        "feed_forward.up": Part(("mlp.dense_h_to_4h",)),
        "feed_forward.down": Part(("mlp.dense_4h_to_h",)),
    },
    head=("embed_out", "lm_head"),
    unused=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    has_biases=True,
    rotary=Rotary(base="rotary_emb_base", fraction="rotary_pct", default_fraction=0.25),
)  # fmt: skip

_LLAMA_BLOCK = {
    "attention_norm": Part(("input_layernorm",)),
    "attention.input": Part(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "attention.output": Part(("self_attn.o_proj",)),
    "feed_forward_norm": Part(("post_attention_layernorm",)),
    "feed_forward.up": Part(("mlp.gate_proj", "mlp.up_proj")),
    "feed_forward.down": Part(("mlp.down_proj",)),
}
_QK_NORMS = {"attention.query_norm": Part(("self_attn.q_norm",)), "attention.key_norm": Part(("self_attn.k_norm",))}


def _like_llama(
    model_type: str,
    architecture: str,
    *,
    sizes: Mapping[str, Any],
    settings: tuple[FieldMapping, ...] = (),
    implies: Mapping[str, Any] | None = None,
    windowed: WindowStyle = "never",
    pre_tokenizer_pattern: str | None = None,
) -> Family:
    """Define a family with Llama's names: RMSNorm, SwiGLU, rotary positions; `sizes` has its defaults."""
    return Family(
        model_type=model_type,
        architecture=architecture,
        settings=(
            FieldMapping("vocab_size", "vocab_size", sizes["vocab_size"]),
            FieldMapping("max_position_embeddings", "context_length", sizes["context_length"]),
            FieldMapping("hidden_size", "d_model", 4096),
            FieldMapping("num_hidden_layers", "n_layers", 32),
            FieldMapping("num_attention_heads", "n_heads", 32),
            FieldMapping("num_key_value_heads", "n_kv_heads", sizes["n_kv_heads"]),
            FieldMapping("head_dim", "d_head", sizes.get("d_head")),
            FieldMapping("intermediate_size", "d_ff", sizes["d_ff"]),
            FieldMapping("rms_norm_eps", "norm_eps", 1e-6),
            FieldMapping("tie_word_embeddings", "tie_embeddings", False),
            FieldMapping("attention_dropout", "attention_dropout", 0.0),
            FieldMapping("initializer_range", "init_std", 0.02),
            *settings,
        ),
        requires=ARCHITECTURES[architecture],
        implies={"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", **(implies or {})},
        neutral={"hidden_act": ("silu", "swish")},
        prefix="model.",
        outer={"embedding.tokens": "embed_tokens", "decoder.final_norm": "norm"},
        block="layers.{}.",
        inner=_LLAMA_BLOCK | _QK_NORMS,
        unused=(".rotary_emb.inv_freq",),
        rotary=Rotary(),
        windowed=windowed,
        pre_tokenizer_pattern=pre_tokenizer_pattern,
    )  # fmt: skip


LLAMA = _like_llama(
    "llama",
    "LlamaForCausalLM",
    sizes={"vocab_size": 32000, "context_length": 2048, "n_kv_heads": None, "d_ff": 11008},
    settings=(
        FieldMapping("attention_bias", "attention_bias", False, _ALL_OR_NONE, also={"inputs": True}),
        FieldMapping("mlp_bias", "bias", False),
    ),
)
QWEN2 = _like_llama(
    "qwen2",
    "Qwen2ForCausalLM",
    sizes={"vocab_size": 151_936, "context_length": 32_768, "n_kv_heads": 32, "d_ff": 22_016},
    implies={"attention_bias": "inputs"},
    windowed="by switch",
    pre_tokenizer_pattern=_QWEN2_WORDS,
)
QWEN3 = _like_llama(
    "qwen3",
    "Qwen3ForCausalLM",
    sizes={"vocab_size": 151_936, "context_length": 32_768, "n_kv_heads": 32, "d_ff": 22_016, "d_head": 128},
    settings=(FieldMapping("attention_bias", "attention_bias", False, _ALL_OR_NONE),),
    implies={"qk_norm": True},
    windowed="by switch",
)
MISTRAL = _like_llama(
    "mistral",
    "MistralForCausalLM",
    sizes={"vocab_size": 32000, "context_length": 131_072, "n_kv_heads": 8, "d_ff": 14_336},
    windowed="by width",
)

_BERT_OUTER = {
    "embedding.tokens": "bert.embeddings.word_embeddings",
    "embedding.positions": "bert.embeddings.position_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
}
_BERT_SETTINGS = (
    FieldMapping("vocab_size", "vocab_size", 30522),
    FieldMapping("max_position_embeddings", "context_length", 512),
    FieldMapping("hidden_size", "d_model", 768),
    FieldMapping("num_hidden_layers", "n_layers", 12),
    FieldMapping("num_attention_heads", "n_heads", 12),
    FieldMapping("intermediate_size", "d_ff", 3072),
    FieldMapping("type_vocab_size", "token_types", 2, also={0: 1}),
    FieldMapping("hidden_act", "activation", "gelu", ACTIVATIONS),
    FieldMapping("layer_norm_eps", "norm_eps", 1e-12),
    FieldMapping("hidden_dropout_prob", "dropout", 0.1),
    FieldMapping("attention_probs_dropout_prob", "attention_dropout", 0.1),
    FieldMapping("initializer_range", "init_std", 0.02),
)
_BERT_TYPES = {"embedding.types": "bert.embeddings.token_type_embeddings.weight"}


def _bert(
    architecture: str,
    auto: str,
    *,
    implies: Mapping[str, Any],
    outer: Mapping[str, str],
    tensors: Mapping[str, str],
    unused: tuple[str, ...],
) -> Family:
    """Define BERT with one of its heads."""
    return Family(
        model_type="bert",
        architecture=architecture,
        auto=auto,
        settings=_BERT_SETTINGS,
        requires=ARCHITECTURES[architecture],
        implies={
            "objective": "masked", "norm": "layernorm", "norm_position": "post", "positions": "learned", "bias": True,
            "embedding_norm": True, **implies,
        },
        neutral={
            "is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": (None, "absolute"),
            "tie_word_embeddings": (True,), "problem_type": (None, "single_label_classification"),
        },
        prefix="",
        outer={**_BERT_OUTER, **outer},
        tensors={**_BERT_TYPES, **tensors},
        block="bert.encoder.layer.{}.",
        inner={
            "attention.input": Part(("attention.self.query", "attention.self.key", "attention.self.value")),
            "attention.output": Part(("attention.output.dense",)),
            "attention_norm": Part(("attention.output.LayerNorm",)),
            "feed_forward.up": Part(("intermediate.dense",)),
            "feed_forward.down": Part(("output.dense",)),
            "feed_forward_norm": Part(("output.LayerNorm",)),
        },
        head=("cls.predictions.decoder",),
        renamed={
            "LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        unused=("embeddings.position_ids", *unused),
        has_biases=True,
    )  # fmt: skip


_BERT = (
    _bert(
        "BertForMaskedLM",
        MASKED_LM,
        implies={"output_transform": True},
        outer={
            "transform.up": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        },
        tensors={"output_bias": "cls.predictions.bias"},
        unused=(
            "cls.seq_relationship.weight", "cls.seq_relationship.bias",
            "bert.pooler.dense.weight", "bert.pooler.dense.bias",
        ),
    ),
    _bert(
        "BertForSequenceClassification",
        SEQUENCE_CLASSIFICATION,
        implies={},
        outer={"classifier.pooler": "bert.pooler.dense", "classifier.labels": "classifier"},
        tensors={},
        unused=(),
    ),
)  # fmt: skip
"""BERT for masked language modelling and for classification."""

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
    renamed={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    sinusoids="embed_positions.weight",
    has_biases=True,
)  # fmt: skip
"""The encoder-decoder of 2017, as Marian (MarianMT)."""

FAMILIES = (GPT2, GPT_NEOX, QWEN2, LLAMA, MISTRAL, QWEN3, *_BERT, MARIAN)
"""In order of preference."""
