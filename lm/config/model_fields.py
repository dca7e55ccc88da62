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
        256, "Longest sequence the model is trained on, in tokens.", minimum=1, flag="--context", maximum=LONGEST
    )
    architecture: Architecture = option(
        "transformer",
        "Transformer blocks, or recurrent layers, for which a preset's Muon and shape of blocks are left out.",
    )
    recurrent_attention: RecurrentScores = option(
        None, "How a recurrent decoder scores the positions of the source [default: additive]."
    )
    d_model: int = option(256, "Width of the residual stream, or of recurrent layers.", minimum=1, maximum=LONGEST)
    n_layers: int = option(4, "Layers (blocks) of the decoder.", minimum=1, maximum=MOST_LAYERS)
    n_encoder_layers: int = option(
        0, "Layers of the encoder; 0 makes a decoder-only model.", minimum=0, maximum=MOST_LAYERS
    )
    decoder_only: bool = option(
        False,
        "Translate without an encoder: one causal stack reads source and target one after the other. It has as many "
        "layers as a preset's encoder and decoder together.",
    )
    n_heads: int = option(4, "Attention heads; they divide d_model.", minimum=1, maximum=LONGEST)
    n_kv_heads: int = option(
        None, "Key/value heads, shared by groups of query heads [default: n_heads].", minimum=1, maximum=LONGEST
    )
    d_ff: int = option(
        None,
        "Width of the feed-forward layer [default: 4 d_model; 8/3 d_model for swiglu].",
        minimum=1,
        maximum=LONGEST,
    )
    attention: AttentionKind = option(
        "full",
        "What self-attention sees: all; a window; window, global and random blocks (bigbird); the length projected to "
        "a low rank (linformer, in encoders and masked models); alternating blocks of strided-convolution and "
        "local attention (compressed).",
    )
    attention_window: int = option(
        None,
        "Positions that a query sees up to its own; on either side where both are seen [default: 128].",
        minimum=1,
        maximum=LONGEST,
    )
    attention_block: int = option(
        None,
        "Positions of a block, of bigbird or in compressed attention's local layers [default: 32; 256].",
        minimum=1,
        maximum=LONGEST,
    )
    global_blocks: int = option(
        None,
        "First blocks, of bigbird, that all see; where both sides are seen they see all [default: 2].",
        minimum=0,
        maximum=LONGEST,
    )
    random_blocks: int = option(
        None, "Blocks drawn at random, of bigbird, that each block sees [default: 3].", minimum=0, maximum=LONGEST
    )
    attention_rank: int = option(
        None, "Keys and values that linformer projects the length to [default: 128].", minimum=1, maximum=LONGEST
    )
    attention_stride: int = option(
        None,
        "Positions that each key and value of compressed attention covers [default: 3].",
        minimum=2,
        maximum=LONGEST,
    )
    positions: Positions = option(
        "rotary", "How positions are encoded; learned ones end at the context, the others extrapolate."
    )
    max_distance: int = option(
        None,
        "Distance from which relative positions are all alike [default: 16; 128 for t5].",
        minimum=1,
        maximum=LONGEST,
    )
    max_tree_distance: int = option(
        None,
        "The same for distances in dependency trees [default: --max-distance if given, else 16].",
        minimum=1,
        maximum=LONGEST,
    )
    syntax: Syntax = option(
        "none",
        "Positions in the dependency trees of sources (--heads), beside --positions: the depth of each word, the "
        "distance between two of them, or both; for translation.",
    )
    rope_base: float = option(10_000.0, "Base of the rotary frequencies.", minimum=1)
    d_head: int = option(None, "Width of each attention head [default: d_model / n_heads].", minimum=1, maximum=LONGEST)
    rotary_share: float = option(
        1.0, "Share of each head's width that rotary positions turn; Pythia has 0.25.", minimum=0, maximum=1
    )
    rope_scaling: RotaryScaling = option(
        "none", "How rotary frequencies are slowed down for a context longer than the one trained on."
    )
    rope_factor: float = option(None, "By how much they are slowed down [default: 1].", minimum=1)
    rope_context: int = option(
        None, "Context trained on before, for llama3 and yarn [default: the context].", minimum=1, maximum=LONGEST
    )
    rope_slow: float = option(
        None, "Turns in that context up to which a frequency is slowed down in full [default: 1].", minimum=0.001
    )
    rope_fast: float = option(
        None, "Turns in that context from which a frequency stays as it is [default: 4; 32 for yarn].", minimum=0
    )
    rope_temperature: float = option(
        None, "Factor of rotated queries and keys, for yarn [default: 1 + 0.1 ln(factor)].", minimum=0
    )
    attention_bias: AttentionBias = option(
        None, "Biases of attention: none, of queries, keys and values (inputs), or all [default: as --bias]."
    )
    parallel_residual: bool = option(
        False, "Let attention and feed-forward layer of a block read the same, and add both, as in Pythia."
    )
    norm: Norm = option("rmsnorm", "Kind of normalisation.")
    norm_position: NormPosition = option("pre", "Normalise before each sublayer, or after adding its output.")
    norm_eps: float = option(1e-5, "Added to the variance in normalisation.", minimum=0)
    activation: Activation = option("swiglu", "Activation of the feed-forward layer.")
    qk_norm: bool = option(False, "Normalise queries and keys (RMSNorm per head).")
    bias: bool = option(False, "Give linear layers and LayerNorms a bias.")
    dropout: float = option(0.0, "Dropped share of embeddings and sublayer outputs.", minimum=0, maximum=0.99)
    attention_dropout: float = option(
        None, "Dropped share of attention weights [default: as --dropout].", minimum=0, maximum=0.99
    )
    tie_embeddings: bool = option(True, "Use the token embedding as the output layer too.")
    scale_embeddings: bool = option(False, "Multiply embeddings by the square root of d_model.")
    init_std: float = option(
        None,
        "Standard deviation of the initial weights [default: 0.02 at GPT-2's width of 768, growing as 1/√d_model].",
        minimum=0,
    )
    zero_init: bool = option(False, "Start the outputs of sublayers, and an untied output layer, at zero.")
    softcap: float = option(
        0.0, "Keep logits within this of zero, smoothly; Gemma 2 has 30. 0 leaves them alone.", minimum=0, maximum=1000
    )
    value_residual: bool = option(
        False, "Mix the values of self-attention with those of the first layer, in learned shares."
    )
    embedding_shortcut: bool = option(False, "Mix the embedding into what each block reads, in learned shares.")
    experts: int = option(
        0,
        "Experts in the place of a feed-forward layer; each token goes through a few of them. 0 has none.",
        minimum=0,
        maximum=LONGEST,
    )
    experts_per_token: int = option(1, "Experts that each token goes through.", minimum=1, maximum=LONGEST)
    expert_every: int = option(1, "Have experts in every block, or with N in every Nth.", minimum=1, maximum=LONGEST)
    expert_capacity: float = option(
        0.0,
        "Expert capacity in training, as a multiple of the tokens per expert of a balanced batch; tokens beyond it "
        "skip the experts. 0 is no limit.",
        minimum=0,
    )
    gate_noise: float = option(
        0.0,
        "Scale of a learned noise, in training, on the scores that choose experts; 1 in Shazeer et al. 2017.",
        minimum=0,
    )
    objective: Objective = option(
        "causal",
        "What is learned of a text: each token from those before it, or masked ones from both sides (BERT), which "
        "makes a model that fills blanks and, with --supervised, one that classifies.",
    )
    embedding_norm: bool = option(False, "Normalise embeddings before the first block, as BERT does.")
    token_types: int = option(
        0,
        "Types of tokens, as BERT has for pairs of sentences, whose vectors are added to embeddings; texts are of the "
        "first. 0 has none.",
        minimum=0,
        maximum=LONGEST,
    )
    output_bias: bool = option(False, "Give the output layer a bias, as Marian does.")
    output_transform: bool = option(
        False,
        "As BERT does, send final states through one more linear layer, activation and normalisation before the output "
        "layer, and give that a bias.",
    )
