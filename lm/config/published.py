"""Presets of published models, with the published numbers of parameters."""

from __future__ import annotations

from typing import Any

from lm.config.preset import Preset


def _gpt2(n_layers: int, d_model: int, n_heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 50257, "context_length": 1024, "d_model": d_model, "n_layers": n_layers, "n_heads": n_heads,
        "positions": "learned", "norm": "layernorm", "activation": "gelu-tanh", "bias": True, "dropout": 0.1,
        "init_std": 0.02,
    }  # fmt: skip


def _nanogpt(n_layers: int, d_model: int, context_length: int, n_heads: int, dropout: float) -> dict[str, Any]:
    return {
        "vocab_size": 65, "context_length": context_length, "d_model": d_model, "n_layers": n_layers,
        "n_heads": n_heads, "positions": "learned", "norm": "layernorm", "activation": "gelu", "dropout": dropout,
    }  # fmt: skip


def _llama(n_layers: int, d_model: int, n_heads: int, context_length: int, d_ff: int) -> dict[str, Any]:
    return {
        "vocab_size": 32000, "context_length": context_length, "d_model": d_model, "n_layers": n_layers,
        "n_heads": n_heads, "d_ff": d_ff,
    }  # fmt: skip


def _transformer(d_model: int, d_ff: int, n_heads: int, dropout: float) -> dict[str, Any]:
    return {
        "vocab_size": 37000, "context_length": 512, "d_model": d_model, "n_layers": 6, "n_encoder_layers": 6,
        "n_heads": n_heads, "d_ff": d_ff, "positions": "sinusoidal", "norm": "layernorm", "norm_position": "post",
        "activation": "relu", "bias": True, "dropout": dropout, "scale_embeddings": True,
    }  # fmt: skip


def _switch(experts: int) -> dict[str, Any]:
    """T5's encoder-decoder (Raffel et al. 2020) with experts in every second block."""
    return {
        "vocab_size": 32128, "context_length": 512, "d_model": 768, "n_layers": 12, "n_encoder_layers": 12,
        "n_heads": 12, "d_ff": 3072, "positions": "t5", "norm_eps": 1e-6, "activation": "relu", "dropout": 0.1,
        "experts": experts, "expert_every": 2, "expert_capacity": 1.25,
    }  # fmt: skip


_BERT = {
    "vocab_size": 30522, "context_length": 512, "d_model": 768, "n_layers": 12, "n_heads": 12, "objective": "masked",
    "positions": "learned", "norm": "layernorm", "norm_position": "post", "norm_eps": 1e-12, "activation": "gelu",
    "bias": True, "dropout": 0.1, "init_std": 0.02, "embedding_norm": True, "output_transform": True,
}  # fmt: skip
"""Without types of tokens, which tell apart pairs of sentences: there are none, as the next sentence is not guessed."""


_NANOGPT_TRAINING = {"beta2": 0.99, "warmup_steps": 100, "learning_rate": 1e-3}
_GPT2_TRAINING = {"batch_size": 480, "steps": 600_000, "learning_rate": 6e-4, "warmup_steps": 2000}
_GPT2_TOKENIZER = {"vocab_size": 50257}
_LLAMA_TRAINING = {"batch_size": 128, "steps": 100_000, "learning_rate": 5e-4, "warmup_steps": 1000}
_TRANSFORMER_TRAINING = {
    "batch_tokens": 25_000, "steps": 100_000, "schedule": "inverse-sqrt", "warmup_steps": 4000,
    "beta2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0, "clip": 0.0, "label_smoothing": 0.1,
}  # fmt: skip


PUBLISHED: dict[str, Preset] = {
    "nanogpt-cpu": Preset(
        "nanoGPT's recipe for a laptop: characters, context 64",
        _nanogpt(4, 128, 64, 4, 0.0), {"kind": "char"},
        training={**_NANOGPT_TRAINING, "batch_size": 12, "steps": 2000},
    ),
    "nanogpt": Preset(
        "nanoGPT's recipe for a GPU: characters, context 256",
        _nanogpt(6, 384, 256, 6, 0.2), {"kind": "char"},
        training={**_NANOGPT_TRAINING, "batch_size": 64, "steps": 5000},
    ),
    "gpt1": Preset(
        "GPT (Radford et al. 2018)",
        {**_gpt2(12, 768, 12), "vocab_size": 40478, "context_length": 512, "norm_position": "post"},
        {"vocab_size": 40478},
        training={
            "batch_size": 64, "epochs": 100.0, "learning_rate": 2.5e-4, "warmup_steps": 2000, "weight_decay": 0.01,
        },
    ),
    "gpt2": Preset("GPT-2 (Radford et al. 2019)", _gpt2(12, 768, 12), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "gpt2-medium": Preset("GPT-2 medium", _gpt2(24, 1024, 16), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "gpt2-large": Preset("GPT-2 large", _gpt2(36, 1280, 20), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "gpt2-xl": Preset("GPT-2 XL", _gpt2(48, 1600, 25), _GPT2_TOKENIZER, training=_GPT2_TRAINING),
    "llama-15m": Preset(
        "Llama's block at the size of llama2.c's stories15M",
        _llama(6, 288, 6, 256, 768), {"vocab_size": 32000}, training=_LLAMA_TRAINING,
    ),
    "llama-42m": Preset(
        "Llama's block at the size of llama2.c's stories42M",
        _llama(8, 512, 8, 1024, 1376), {"vocab_size": 32000}, training=_LLAMA_TRAINING,
    ),
    "llama-110m": Preset(
        "Llama's block at the size of llama2.c's stories110M",
        _llama(12, 768, 12, 1024, 2048), {"vocab_size": 32000}, training=_LLAMA_TRAINING,
    ),
    "smollm-135m": Preset(
        "SmolLM 135M (2024): deep and narrow, 3 key/value heads for 9 query heads",
        {**_llama(30, 576, 9, 2048, 1536), "n_kv_heads": 3, "vocab_size": 49152}, {"vocab_size": 49152},
        training={**_LLAMA_TRAINING, "schedule": "wsd", "learning_rate": 3e-3, "final_learning_rate": 0.0},
    ),
    "transformer-base": Preset(
        "the encoder-decoder of Vaswani et al. 2017, base",
        _transformer(512, 2048, 8, 0.1), {"vocab_size": 37000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4},
    ),
    "transformer-relative": Preset(
        "transformer-base with the relative positions of Shaw et al. 2018",
        {**_transformer(512, 2048, 8, 0.1), "positions": "relative"}, {"vocab_size": 37000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4},
    ),
    "transformer-big": Preset(
        "the encoder-decoder of Vaswani et al. 2017, big",
        _transformer(1024, 4096, 16, 0.3), {"vocab_size": 37000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 5e-4, "steps": 300_000},
    ),
    "t-dmca": Preset(
        "the decoder of Liu et al. 2018 for long texts: local and memory-compressed attention in turns",
        {
            **_transformer(512, 2048, 8, 0.1), "vocab_size": 32_000, "context_length": 11_000, "n_layers": 5,
            "n_encoder_layers": 0, "attention": "compressed",
        },
        {"vocab_size": 32_000},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4},
    ),
    "switch-base": Preset(
        "Switch Transformer base of 8 experts (Fedus et al. 2021)",
        _switch(8), {"vocab_size": 32128},
        training={**_TRANSFORMER_TRAINING, "learning_rate": 7e-4, "clip": 1.0, "label_smoothing": 0.0},
    ),
    "bert-base": Preset(
        "BERT base (Devlin et al. 2019), a masked model",
        _BERT, {"vocab_size": 30522},
        training={
            "batch_size": 256, "steps": 1_000_000, "learning_rate": 1e-4, "schedule": "linear",
            "warmup_steps": 10_000, "final_learning_rate": 0.0, "beta2": 0.999,
            "epsilon": 1e-6, "weight_decay": 0.01,
        },
    ),
}  # fmt: skip
