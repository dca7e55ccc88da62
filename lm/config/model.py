"""The shape of a model: its settings, which go together, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from lm.config.settings import (
    DERIVED,
    Config,
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Rate,
    list_settings,
)
from lm.errors import UsageError

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

DISTANCES = ("alibi", "relative", "t5")
"""Positions of which only the distances matter."""
_SINGLE = 16
"""Distances that T5 tells apart one by one, at most."""

_OF_ALL = {
    "context_length", "architecture", "recurrent_attention", "d_model", "n_layers", "n_encoder_layers", "dropout",
    "tie_embeddings", "scale_embeddings", "init_std", "softcap", "members",
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfig(Config):
    """A stack of layers. With `n_encoder_layers` it is an encoder-decoder, without a decoder-only or a masked model.

    A decoder-only model continues texts, or with `decoder_only` it translates (Transformer-D, Liu et al. 2018).

    Fields that follow from others are computed once, when the config is made: later code reads the field.

    Attributes:
        vocab_size: tokens that the model knows, and predicts.
        source_vocab_size: of an encoder-decoder whose source has a vocabulary of its own.
        labels: of a masked model that was made a classifier, what it chooses from; its output layer has one row each.

    Settings:
        context_length: Context length (longest training sequence).
        architecture: Transformer blocks, or recurrent layers.
        recurrent_attention: Attention of a recurrent decoder; default additive.
        d_model: Width of the residual stream.
        n_layers: Layers of the decoder.
        n_encoder_layers: Layers of the encoder; 0: decoder-only.
        decoder_only: Translate with a decoder-only model.
        n_heads: Attention heads; must divide d_model.
        n_kv_heads: Key/value heads (GQA); default n_heads.
        d_ff: Feed-forward width; default 4 d_model, swiglu 8/3 d_model.
        attention: Self-attention pattern.
        attention_window: Window of attention, on each visible side.
        attention_block: Block of bigbird (default 32), or local block of compressed attention (256).
        global_blocks: Global blocks of bigbird.
        random_blocks: Random blocks per block of bigbird.
        attention_rank: Rank of linformer's projection.
        attention_stride: Stride of compressed attention.
        positions: Position encoding.
        max_distance: Relative positions: clipping distance; default 16, t5 128.
        max_tree_distance: Dependency trees: clipping distance; default max_distance, or 16.
        syntax: Positions in dependency trees (--dependency-heads).
        rope_base: RoPE: base (theta).
        d_head: Width of a head; default d_model / n_heads.
        rotary_fraction: RoPE: rotated fraction of a head.
        rope_scaling: RoPE scaling.
        rope_factor: RoPE scaling: factor.
        rope_context: RoPE scaling: original context; default context.
        rope_slow: RoPE scaling: low_freq_factor, beta_slow.
        rope_fast: RoPE scaling: high_freq_factor, beta_fast; default 4, yarn 32.
        rope_temperature: RoPE scaling: attention_factor; default 1 + 0.1 ln(factor).
        attention_bias: Biases of attention; inputs: Q, K, V; default as bias.
        parallel_residual: Parallel attention and feed-forward.
        norm: Normalisation layers.
        norm_position: Pre-norm or post-norm.
        norm_eps: Normalisation: epsilon.
        activation: Feed-forward activation.
        qk_norm: RMSNorm of queries and keys.
        bias: Biases in linear layers and LayerNorms.
        dropout: Dropout of sublayers and embeddings.
        attention_dropout: Dropout of attention weights; default dropout.
        tie_embeddings: Tie input and output embeddings.
        scale_embeddings: Scale embeddings by √d_model.
        init_std: Standard deviation of initial weights; default 0.02 √(768 / d_model).
        zero_init: Zero-initialise output projections.
        softcap: Soft-capping of the logits; 0: off.
        value_residual: Value residual: mix in values of layer 1.
        key_offset: Key offset: half of the heads read the key of the token before.
        experts: MoE: experts per feed-forward layer; 0: none.
        experts_per_token: MoE: top-k of the router.
        expert_every: MoE: experts in every Nth block.
        expert_capacity: MoE: capacity factor in training; 0: unlimited.
        gate_noise: MoE: router noise in training.
        objective: Next token (GPT) or masked tokens (BERT).
        embedding_norm: Normalise embeddings (BERT).
        token_types: Token type embeddings (BERT); 0: none.
        output_bias: Bias of the output layer (Marian).
        output_transform: Linear, activation, norm before the output layer (BERT).
        members: Ensemble: models that are trained together, and average their probabilities.
    """

    vocab_size: Count = 256
    source_vocab_size: Count | None = None
    labels: tuple[str, ...] = ()
    context_length: Count = 256
    architecture: Architecture = "transformer"
    recurrent_attention: Annotated[RecurrentScores, "model.architecture=lstm|gru"] = DERIVED
    d_model: Count = 256
    n_layers: Count = 4
    n_encoder_layers: Natural = 0
    decoder_only: bool = False
    n_heads: Count = 4
    n_kv_heads: Count = DERIVED
    d_ff: Count = DERIVED
    attention: AttentionKind = "full"
    attention_window: Annotated[Count, "model.attention=window"] = 128
    attention_block: Annotated[Count, "model.attention=bigbird|compressed"] = DERIVED
    global_blocks: Annotated[Natural, "model.attention=bigbird"] = 2
    random_blocks: Annotated[Natural, "model.attention=bigbird"] = 3
    attention_rank: Annotated[Count, "model.attention=linformer"] = 128
    attention_stride: Annotated[Count, "model.attention=compressed"] = 3
    positions: Positions = "rotary"
    max_distance: Count = DERIVED
    max_tree_distance: Annotated[Count, "model.syntax=distance|both"] = DERIVED
    syntax: Syntax = "none"
    rope_base: Annotated[Positive, "model.positions=rotary"] = 10_000.0
    d_head: Count = DERIVED
    rotary_fraction: Annotated[Fraction, "model.positions=rotary"] = 1.0
    rope_scaling: Annotated[RotaryScaling, "model.positions=rotary"] = "none"
    rope_factor: Annotated[Positive, "model.rope_scaling=linear|llama3|yarn"] = 1.0
    rope_context: Annotated[Count, "model.rope_scaling=llama3|yarn"] = DERIVED
    rope_slow: Annotated[Positive, "model.rope_scaling=llama3|yarn"] = 1.0
    rope_fast: Annotated[Positive, "model.rope_scaling=llama3|yarn"] = DERIVED
    rope_temperature: Annotated[Positive, "model.rope_scaling=yarn"] = DERIVED
    attention_bias: AttentionBias = DERIVED
    parallel_residual: bool = False
    norm: Norm = "rmsnorm"
    norm_position: NormPosition = "pre"
    norm_eps: NonNegative = 1e-5
    activation: Activation = "swiglu"
    qk_norm: bool = False
    bias: bool = False
    dropout: Rate = 0.0
    attention_dropout: Rate = DERIVED
    tie_embeddings: bool = True
    scale_embeddings: bool = False
    init_std: NonNegative = DERIVED
    zero_init: bool = False
    softcap: NonNegative = 0.0
    value_residual: bool = False
    key_offset: bool = False
    experts: Natural = 0
    experts_per_token: Annotated[Count, "model.experts"] = 1
    expert_every: Annotated[Count, "model.experts"] = 1
    expert_capacity: Annotated[NonNegative, "model.experts"] = 0.0
    gate_noise: Annotated[NonNegative, "model.experts"] = 0.0
    objective: Objective = "causal"
    embedding_norm: bool = False
    token_types: Natural = 0
    output_bias: bool = False
    output_transform: bool = False
    members: Count = 1

    _left_open: ClassVar[frozenset[str]] = frozenset()
    """The fields that follow from others in this config; no field itself, so that files and comparisons lack it."""

    def __post_init__(self) -> None:
        derived = {name: value for name, value in self._derived_defaults().items() if getattr(self, name) is None}
        for name, value in {**derived, "_left_open": frozenset(derived)}.items():
            object.__setattr__(self, name, value)
        for problem in self._conflicts():
            raise UsageError(problem)

    def _derived_defaults(self) -> dict[str, Any]:
        defaults = {
            "init_std": 0.02 * math.sqrt(768 / self.d_model),
            "attention_bias": "all" if self.bias else "none",
        }
        if self.is_recurrent:
            return {**defaults, "recurrent_attention": "additive"} if self.is_encoder_decoder else defaults
        is_yarn = self.rope_scaling == "yarn"
        return {
            **defaults,
            "n_kv_heads": self.n_heads,
            "d_head": None if self.d_model % self.n_heads else self.d_model // self.n_heads,
            "d_ff": -(-8 * self.d_model // (3 * 32)) * 32 if self.activation == "swiglu" else 4 * self.d_model,
            "attention_dropout": self.dropout,
            "max_distance": 128 if self.positions == "t5" else 16,  # as published, like the next
            "max_tree_distance": self.max_distance or 16,
            "attention_block": 32 if self.attention == "bigbird" else 256,
            "rope_context": self.context_length,
            "rope_fast": 32.0 if is_yarn else 4.0,
            "rope_temperature": 1 + 0.1 * math.log(self.rope_factor) if is_yarn else None,
        }

    def settings(self) -> dict[str, Any]:
        """Return its fields, None if derived, so that changed fields keep the rest consistent."""
        return {
            field.name: None if field.name in self._left_open else getattr(self, field.name) for field in fields(self)
        }

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, and derived fields recomputed."""
        return type(self)(**{**self.settings(), **changes})

    def _conflicts(self) -> Iterator[str]:
        """Yield what contradicts, in derived fields too."""
        if self.decoder_only and self.is_encoder_decoder:
            yield "a decoder_only model has no n_encoder_layers"
        if self.is_masked and self.translates:
            yield "a model with the objective masked does not translate"
        if not self.is_recurrent:
            yield from self._conflicts_in_blocks()
            return
        for setting in list_settings("model", ModelConfig):
            if setting.name in OF_BLOCKS and getattr(self, setting.name) not in {setting.default, "none"}:
                yield f"{setting.name} is for transformer blocks, not for the architecture {self.architecture}"

    def _conflicts_in_blocks(self) -> Iterator[str]:
        if self.d_head is None:
            yield f"n_heads {self.n_heads} does not divide d_model {self.d_model}"
        if self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}"
        if self.positions == "t5" and self.max_distance <= _SINGLE:
            yield f"positions t5 need a max_distance over {_SINGLE}, not {self.max_distance}"
        if self.parallel_residual and (self.is_encoder_decoder or self.norm_position == "post"):
            yield "parallel_residual is for decoder-only models with norm_position pre"
        if self.positions == "rotary" and (self.rotary_dim < 2 or self.rotary_dim % 2):
            yield f"positions rotary need an even d_head × rotary_fraction, not {self.rotary_dim}"
        if self.syntax != "none" and not self.is_encoder_decoder:
            yield "syntax is for the encoder of a translation model"
        if self.attention == "linformer" and not (self.is_encoder_decoder or self.is_masked):
            yield "attention linformer is for encoders and masked models: it mixes later positions into earlier ones"
        if self.attention != "full" and (self.has_tree_distances or self.positions in DISTANCES):
            yield f"distances (positions alibi, relative and t5, syntax) need attention full, not {self.attention}"

    @property
    def is_recurrent(self) -> bool:
        return self.architecture != "transformer"

    @property
    def is_masked(self) -> bool:
        """Return whether it is bidirectional, a masked language model or a classifier."""
        return self.objective == "masked"

    @property
    def purpose(self) -> str:
        """Return what the model is for, for messages."""
        if self.is_masked:
            return "classifies texts" if self.labels else "fills blanks"
        return "translates" if self.translates else "continues texts"

    @property
    def is_encoder_decoder(self) -> bool:
        return self.n_encoder_layers > 0

    @property
    def translates(self) -> bool:
        return self.is_encoder_decoder or self.decoder_only

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, from 0 in its stack, has experts instead of a feed-forward layer."""
        return self.experts > 0 and (layer + 1) % self.expert_every == 0

    def has_compressed_attention(self, layer: int) -> bool:
        """Return whether a layer, from 0 in its stack, has compressed attention: every second one."""
        return self.attention == "compressed" and layer % 2 == 1

    @property
    def n_offset_heads(self) -> int:
        """Key/value heads that read the key of the token before, the last ones."""
        return self.n_kv_heads // 2 if self.key_offset else 0

    @property
    def position_limit(self) -> int | None:
        """Return the longest sequence that the model has positions for; None if unlimited."""
        ends = self.positions == "learned" or self.attention == "linformer"
        return self.context_length if ends else None

    @property
    def has_tree_distances(self) -> bool:
        """Return whether it uses the distances between words in their dependency tree."""
        return self.syntax in {"distance", "both"}

    @property
    def rotary_dim(self) -> int:
        """Return the rotary width of a head."""
        return int(self.d_head * self.rotary_fraction)


OF_BLOCKS = frozenset(setting.name for setting in list_settings("model", ModelConfig)) - _OF_ALL
"""The fields that describe transformer blocks, and say nothing of recurrent layers."""


def check_heads_given(model: ModelConfig, *, are_given: bool) -> None:
    """Raise UsageError unless dependency heads are given exactly if a model reads trees."""
    if (model.syntax != "none") != are_given:
        raise UsageError("models with a setting model.syntax need dependency_heads, others take none")
