"""What can be said of a model, field by field: types, defaults, help and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.config.options import CheckedConfig, option

Architecture = Literal["transformer", "lstm", "gru"]
RecurrentScores = Literal["none", "dot", "general", "additive"]
RotaryScaling = Literal["none", "linear", "llama3", "yarn"]
AttentionBias = Literal["none", "inputs", "all"]
Positions = Literal["learned", "sinusoidal", "sinusoidal-half", "rotary", "alibi", "relative", "t5", "none"]
AttentionKind = Literal["full", "window", "bigbird", "linformer", "compressed"]
Syntax = Literal["none", "depth", "distance", "both"]
Norm = Literal["layernorm", "rmsnorm"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu"]
Objective = Literal["causal", "masked"]

LONGEST = 2**31 - 1
"""The largest length or width: the product of two of them fits into 64 bits."""
MOST_LAYERS = 10_000


@dataclass(frozen=True)
class ModelFields(CheckedConfig):
    """The fields of `ModelConfig`, which says what goes together and what follows from them.

    Attributes:
        vocab_size: tokens that the model knows, and predicts.
        source_vocab_size: of an encoder-decoder whose source has a vocabulary of its own.
        labels: of a masked model that was made a classifier, what it chooses from; its output layer has one row each.
    """

    vocab_size: int = 256
    source_vocab_size: int | None = None
    labels: tuple[str, ...] = ()
    context_length: int = option(
        256, "Context length (longest training sequence).", minimum=1, flag="--context", maximum=LONGEST, unit="TOKENS"
    )
    architecture: Architecture = option("transformer", "Transformer blocks, or recurrent layers.", advanced=True)
    recurrent_attention: RecurrentScores = option(
        None,
        "Attention of a recurrent decoder.",
        default_text="additive",
        advanced=True,
        requires="model.architecture=lstm|gru",
    )
    d_model: int = option(256, "Width of the residual stream.", minimum=1, maximum=LONGEST)
    n_layers: int = option(4, "Layers of the decoder.", minimum=1, maximum=MOST_LAYERS)
    n_encoder_layers: int = option(
        0, "Layers of the encoder.", default_text="decoder-only", minimum=0, maximum=MOST_LAYERS, group="Translation"
    )
    decoder_only: bool = option(False, "Translate with a decoder-only model.", group="Translation")
    n_heads: int = option(4, "Attention heads; must divide d_model.", minimum=1, maximum=LONGEST)
    n_kv_heads: int = option(None, "Key/value heads (GQA).", minimum=1, maximum=LONGEST, default_text="n_heads")
    d_ff: int = option(
        None,
        "Feed-forward width.",
        minimum=1,
        maximum=LONGEST,
        default_text="4 d_model; swiglu: 8/3 d_model",
    )
    attention: AttentionKind = option("full", "Self-attention pattern.", advanced=True)
    attention_window: int = option(
        None,
        "Window of attention, on each visible side.",
        minimum=1,
        maximum=LONGEST,
        unit="TOKENS",
        default_text="128",
        advanced=True,
        requires="model.attention=window",
    )
    attention_block: int = option(
        None,
        "Block of bigbird, or local block of compressed attention.",
        minimum=1,
        maximum=LONGEST,
        unit="TOKENS",
        default_text="32; compressed 256",
        advanced=True,
        requires="model.attention=bigbird|compressed",
    )
    global_blocks: int = option(
        None,
        "Global blocks of bigbird.",
        minimum=0,
        maximum=LONGEST,
        default_text="2",
        advanced=True,
        requires="model.attention=bigbird",
    )
    random_blocks: int = option(
        None,
        "Random blocks per block of bigbird.",
        minimum=0,
        maximum=LONGEST,
        default_text="3",
        advanced=True,
        requires="model.attention=bigbird",
    )
    attention_rank: int = option(
        None,
        "Rank of linformer's projection.",
        minimum=1,
        maximum=LONGEST,
        unit="RANK",
        default_text="128",
        advanced=True,
        requires="model.attention=linformer",
    )
    attention_stride: int = option(
        None,
        "Stride of compressed attention.",
        minimum=2,
        maximum=LONGEST,
        unit="TOKENS",
        default_text="3",
        advanced=True,
        requires="model.attention=compressed",
    )
    positions: Positions = option("rotary", "Position encoding.")
    max_distance: int = option(
        None,
        "Relative positions: clipping distance.",
        minimum=1,
        maximum=LONGEST,
        unit="TOKENS",
        default_text="16; t5 128",
        advanced=True,
        requires="model.positions=relative|t5 or model.syntax=distance|both",
    )
    max_tree_distance: int = option(
        None,
        "Dependency trees: clipping distance.",
        minimum=1,
        maximum=LONGEST,
        default_text="as max_distance",
        group="Syntax",
        advanced=True,
        requires="model.syntax=distance|both",
    )
    syntax: Syntax = option("none", "Positions in dependency trees (--heads).", group="Syntax", advanced=True)
    rope_base: float = option(
        10_000.0, "RoPE: base (theta).", minimum=1, advanced=True, requires="model.positions=rotary"
    )
    d_head: int = option(
        None, "Width of a head.", minimum=1, maximum=LONGEST, default_text="d_model / n_heads", advanced=True
    )
    rotary_fraction: float = option(
        1.0,
        "RoPE: rotated fraction of a head.",
        minimum=0,
        maximum=1,
        unit="FRACTION",
        advanced=True,
        requires="model.positions=rotary",
    )
    rope_scaling: RotaryScaling = option("none", "RoPE scaling.", advanced=True, requires="model.positions=rotary")
    rope_factor: float = option(
        None,
        "RoPE scaling: factor.",
        minimum=1,
        unit="FACTOR",
        default_text="1",
        advanced=True,
        requires="model.rope_scaling=linear|llama3|yarn",
    )
    rope_context: int = option(
        None,
        "RoPE scaling: original context.",
        minimum=1,
        maximum=LONGEST,
        unit="TOKENS",
        default_text="context",
        advanced=True,
        requires="model.rope_scaling=llama3|yarn",
    )
    rope_slow: float = option(
        None,
        "RoPE scaling: low_freq_factor, beta_slow.",
        minimum=0.001,
        default_text="1",
        advanced=True,
        requires="model.rope_scaling=llama3|yarn",
    )
    rope_fast: float = option(
        None,
        "RoPE scaling: high_freq_factor, beta_fast.",
        minimum=0,
        default_text="4; yarn 32",
        advanced=True,
        requires="model.rope_scaling=llama3|yarn",
    )
    rope_temperature: float = option(
        None,
        "RoPE scaling: attention_factor.",
        minimum=0,
        default_text="1 + 0.1 ln(factor)",
        advanced=True,
        requires="model.rope_scaling=yarn",
    )
    attention_bias: AttentionBias = option(
        None, "Biases of attention; inputs: Q, K, V.", default_text="as bias", advanced=True
    )
    parallel_residual: bool = option(False, "Parallel attention and feed-forward.", advanced=True)
    norm: Norm = option("rmsnorm", "Normalisation layers.")
    norm_position: NormPosition = option("pre", "Pre-norm or post-norm.", advanced=True)
    norm_eps: float = option(1e-5, "Normalisation: epsilon.", minimum=0, advanced=True)
    activation: Activation = option("swiglu", "Feed-forward activation.")
    qk_norm: bool = option(False, "RMSNorm of queries and keys.", advanced=True)
    bias: bool = option(False, "Biases in linear layers and LayerNorms.", advanced=True)
    dropout: float = option(0.0, "Dropout of sublayers and embeddings.", minimum=0, maximum=0.99, unit="RATE")
    attention_dropout: float = option(
        None,
        "Dropout of attention weights.",
        minimum=0,
        maximum=0.99,
        unit="RATE",
        default_text="as dropout",
        advanced=True,
    )
    tie_embeddings: bool = option(True, "Tie input and output embeddings.", advanced=True)
    scale_embeddings: bool = option(False, "Scale embeddings by √d_model.", advanced=True)
    init_std: float = option(
        None,
        "Standard deviation of initial weights.",
        minimum=0,
        unit="STD",
        default_text="0.02 √(768 / d_model)",
        advanced=True,
    )
    zero_init: bool = option(False, "Zero-initialise output projections.", advanced=True)
    softcap: float = option(
        0.0, "Soft-capping of the logits.", default_text="off", minimum=0, maximum=1000, advanced=True
    )
    value_residual: bool = option(False, "Value residual: mix in values of layer 1.", advanced=True)
    embedding_shortcut: bool = option(False, "Mix embeddings into each block.", advanced=True)
    experts: int = option(
        0, "MoE: experts per feed-forward layer.", default_text="none", minimum=0, maximum=LONGEST, advanced=True
    )
    experts_per_token: int = option(
        1, "MoE: top-k of the router.", minimum=1, maximum=LONGEST, advanced=True, requires="model.experts"
    )
    expert_every: int = option(
        1, "MoE: experts in every Nth block.", minimum=1, maximum=LONGEST, advanced=True, requires="model.experts"
    )
    expert_capacity: float = option(
        0.0,
        "MoE: capacity factor in training.",
        default_text="unlimited",
        minimum=0,
        unit="FACTOR",
        advanced=True,
        requires="model.experts",
    )
    gate_noise: float = option(
        0.0, "MoE: router noise in training.", minimum=0, unit="SCALE", advanced=True, requires="model.experts"
    )
    objective: Objective = option("causal", "Next token (GPT) or masked tokens (BERT).")
    embedding_norm: bool = option(False, "Normalise embeddings (BERT).", advanced=True)
    token_types: int = option(
        0, "Token type embeddings (BERT).", default_text="none", minimum=0, maximum=LONGEST, advanced=True
    )
    output_bias: bool = option(False, "Bias of the output layer (Marian).", advanced=True)
    output_transform: bool = option(False, "Linear, activation, norm before the output layer (BERT).", advanced=True)
