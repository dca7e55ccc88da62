"""The shape of a model: its settings, which go together, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta

from lm.config.settings import (
    DERIVED,
    LARGEST,
    Config,
    Count,
    Fraction,
    Natural,
    Positive,
    Rate,
    Requires,
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

_Layers = Annotated[int, Meta(ge=0, le=10_000)]
_Base = Annotated[float, Meta(ge=1, le=1e30)]

DISTANCES = ("alibi", "relative", "t5")
"""Positions of which only the distances matter."""
_FARTHEST = {"relative": 16, "t5": 128}
"""Distances from which positions are alike, as published."""
_FARTHEST_IN_TREES = 16
"""The same for distances in dependency trees."""
_SINGLE = 16
"""Distances that T5 tells apart one by one, at most."""

_OF_ALL = {
    "context_length", "architecture", "recurrent_attention", "d_model", "n_layers", "n_encoder_layers", "dropout",
    "tie_embeddings", "scale_embeddings", "init_std", "softcap",
}  # fmt: skip

_OF_SCALING: Mapping[RotaryScaling, tuple[str, ...]] = {
    "none": (),
    "linear": ("rope_factor",),
    "llama3": ("rope_factor", "rope_context", "rope_slow", "rope_fast"),
    "yarn": ("rope_factor", "rope_context", "rope_slow", "rope_fast", "rope_temperature"),
}
"""The settings that each way of scaling rotary positions has."""

_OF_ATTENTION: Mapping[AttentionKind, Mapping[str, int]] = {
    "full": {},
    "window": {"attention_window": 128},
    "bigbird": {"attention_block": 32, "global_blocks": 2, "random_blocks": 3},
    "linformer": {"attention_rank": 128},
    "compressed": {"attention_block": 256, "attention_stride": 3},
}
"""The settings that each kind of attention has, with what they are unless set: for blocks and strides as published."""

_ROTARY, _EXPERTS = Requires("model.positions=rotary"), Requires("model.experts")
_BIGBIRD, _LLAMA3 = Requires("model.attention=bigbird"), Requires("model.rope_scaling=llama3|yarn")


@dataclass(frozen=True)
class ModelConfig(Config):
    """A stack of layers. With `n_encoder_layers` it is an encoder-decoder, without a decoder-only or a masked model.

    A decoder-only model continues texts, or with `decoder_only` it translates (Transformer-D, Liu et al. 2018).

    Fields that follow from others are computed once, when the config is made: later code reads the field.

    Attributes:
        vocab_size: tokens that the model knows, and predicts.
        source_vocab_size: of an encoder-decoder whose source has a vocabulary of its own.
        labels: of a masked model that was made a classifier, what it chooses from; its output layer has one row each.
    """

    vocab_size: Count = 256
    source_vocab_size: Count | None = None
    labels: tuple[str, ...] = ()
    context_length: Annotated[Count, "Context length (longest training sequence)."] = 256
    architecture: Annotated[Architecture, "Transformer blocks, or recurrent layers."] = "transformer"
    recurrent_attention: Annotated[
        RecurrentScores, "Attention of a recurrent decoder; default additive.", Requires("model.architecture=lstm|gru")
    ] = DERIVED
    d_model: Annotated[Count, "Width of the residual stream."] = 256
    n_layers: Annotated[int, Meta(ge=1, le=10_000), "Layers of the decoder."] = 4
    n_encoder_layers: Annotated[_Layers, "Layers of the encoder; 0: decoder-only."] = 0
    decoder_only: Annotated[bool, "Translate with a decoder-only model."] = False
    n_heads: Annotated[Count, "Attention heads; must divide d_model."] = 4
    n_kv_heads: Annotated[Count, "Key/value heads (GQA); default n_heads."] = DERIVED
    d_ff: Annotated[Count, "Feed-forward width; default 4 d_model, swiglu 8/3 d_model."] = DERIVED
    attention: Annotated[AttentionKind, "Self-attention pattern."] = "full"
    attention_window: Annotated[
        Count, "Window of attention, on each visible side; default 128.", Requires("model.attention=window")
    ] = DERIVED
    attention_block: Annotated[
        Count,
        "Block of bigbird (default 32), or local block of compressed attention (256).",
        Requires("model.attention=bigbird|compressed"),
    ] = DERIVED
    global_blocks: Annotated[Natural, "Global blocks of bigbird; default 2.", _BIGBIRD] = DERIVED
    random_blocks: Annotated[Natural, "Random blocks per block of bigbird; default 3.", _BIGBIRD] = DERIVED
    attention_rank: Annotated[
        Count, "Rank of linformer's projection; default 128.", Requires("model.attention=linformer")
    ] = DERIVED
    attention_stride: Annotated[
        int,
        Meta(ge=2, le=LARGEST),
        "Stride of compressed attention; default 3.",
        Requires("model.attention=compressed"),
    ] = DERIVED
    positions: Annotated[Positions, "Position encoding."] = "rotary"
    max_distance: Annotated[
        Count,
        "Relative positions: clipping distance; default 16, t5 128.",
        Requires("model.positions=relative|t5 or model.syntax=distance|both"),
    ] = DERIVED
    max_tree_distance: Annotated[
        Count,
        "Dependency trees: clipping distance; default max_distance.",
        Requires("model.syntax=distance|both"),
    ] = DERIVED
    syntax: Annotated[Syntax, "Positions in dependency trees (--dependency-heads)."] = "none"
    rope_base: Annotated[_Base, "RoPE: base (theta).", _ROTARY] = 10_000.0
    d_head: Annotated[Count, "Width of a head; default d_model / n_heads."] = DERIVED
    rotary_fraction: Annotated[Fraction, "RoPE: rotated fraction of a head.", _ROTARY] = 1.0
    rope_scaling: Annotated[RotaryScaling, "RoPE scaling.", _ROTARY] = "none"
    rope_factor: Annotated[
        _Base, "RoPE scaling: factor; default 1.", Requires("model.rope_scaling=linear|llama3|yarn")
    ] = DERIVED
    rope_context: Annotated[Count, "RoPE scaling: original context; default context.", _LLAMA3] = DERIVED
    rope_slow: Annotated[
        float, Meta(ge=0.001, le=1e30), "RoPE scaling: low_freq_factor, beta_slow; default 1.", _LLAMA3
    ] = DERIVED
    rope_fast: Annotated[Positive, "RoPE scaling: high_freq_factor, beta_fast; default 4, yarn 32.", _LLAMA3] = DERIVED
    rope_temperature: Annotated[
        Positive,
        "RoPE scaling: attention_factor; default 1 + 0.1 ln(factor).",
        Requires("model.rope_scaling=yarn"),
    ] = DERIVED
    attention_bias: Annotated[AttentionBias, "Biases of attention; inputs: Q, K, V; default as bias."] = DERIVED
    parallel_residual: Annotated[bool, "Parallel attention and feed-forward."] = False
    norm: Annotated[Norm, "Normalisation layers."] = "rmsnorm"
    norm_position: Annotated[NormPosition, "Pre-norm or post-norm."] = "pre"
    norm_eps: Annotated[Positive, "Normalisation: epsilon."] = 1e-5
    activation: Annotated[Activation, "Feed-forward activation."] = "swiglu"
    qk_norm: Annotated[bool, "RMSNorm of queries and keys."] = False
    bias: Annotated[bool, "Biases in linear layers and LayerNorms."] = False
    dropout: Annotated[Rate, "Dropout of sublayers and embeddings."] = 0.0
    attention_dropout: Annotated[Rate, "Dropout of attention weights; default dropout."] = DERIVED
    tie_embeddings: Annotated[bool, "Tie input and output embeddings."] = True
    scale_embeddings: Annotated[bool, "Scale embeddings by √d_model."] = False
    init_std: Annotated[Positive, "Standard deviation of initial weights; default 0.02 √(768 / d_model)."] = DERIVED
    zero_init: Annotated[bool, "Zero-initialise output projections."] = False
    softcap: Annotated[float, Meta(ge=0, le=1000), "Soft-capping of the logits; 0: off."] = 0.0
    value_residual: Annotated[bool, "Value residual: mix in values of layer 1."] = False
    experts: Annotated[Natural, "MoE: experts per feed-forward layer; 0: none."] = 0
    experts_per_token: Annotated[Count, "MoE: top-k of the router.", _EXPERTS] = 1
    expert_every: Annotated[Count, "MoE: experts in every Nth block.", _EXPERTS] = 1
    expert_capacity: Annotated[Positive, "MoE: capacity factor in training; 0: unlimited.", _EXPERTS] = 0.0
    gate_noise: Annotated[Positive, "MoE: router noise in training.", _EXPERTS] = 0.0
    objective: Annotated[Objective, "Next token (GPT) or masked tokens (BERT)."] = "causal"
    embedding_norm: Annotated[bool, "Normalise embeddings (BERT)."] = False
    token_types: Annotated[Natural, "Token type embeddings (BERT); 0: none."] = 0
    output_bias: Annotated[bool, "Bias of the output layer (Marian)."] = False
    output_transform: Annotated[bool, "Linear, activation, norm before the output layer (BERT)."] = False

    _left_open: ClassVar[frozenset[str]] = frozenset()
    """The fields that follow from others in this config; no field itself, so that files and comparisons lack it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        for problem in self._conflicts():
            raise UsageError(problem)
        derived = {name: value for name, value in self._derived_defaults().items() if getattr(self, name) is None}
        for name, value in {**derived, "_left_open": frozenset(derived)}.items():
            object.__setattr__(self, name, value)
        for problem in () if self.is_recurrent else self._conflicts_in_blocks():
            raise UsageError(problem)

    def _derived_defaults(self) -> dict[str, Any]:
        defaults = {
            "init_std": 0.02 * math.sqrt(768 / self.d_model),
            "attention_bias": "all" if self.bias else "none",
        }
        if self.is_recurrent:
            return {**defaults, **({"recurrent_attention": "additive"} if self.is_encoder_decoder else {})}
        is_gated = self.activation == "swiglu"
        return {
            **defaults,
            "n_kv_heads": self.n_heads,
            **({} if self.d_model % self.n_heads else {"d_head": self.d_model // self.n_heads}),
            "d_ff": -(-8 * self.d_model // (3 * 32)) * 32 if is_gated else 4 * self.d_model,
            "attention_dropout": self.dropout,
            **_OF_ATTENTION[self.attention],
            **({"max_distance": _FARTHEST[self.positions]} if self.positions in _FARTHEST else {}),
            **({"max_tree_distance": self.max_distance or _FARTHEST_IN_TREES} if self.has_tree_distances else {}),
            **self._scaling(),
        }

    def _scaling(self) -> dict[str, Any]:
        """Return the default parameters of `rope_scaling`, as published."""
        is_yarn = self.rope_scaling == "yarn"
        numbers = {
            "rope_factor": 1.0,
            "rope_context": self.context_length,
            "rope_slow": 1.0,
            "rope_fast": 32.0 if is_yarn else 4.0,
            "rope_temperature": 1 + 0.1 * math.log(self.rope_factor or 1.0),
        }
        return {name: numbers[name] for name in _OF_SCALING[self.rope_scaling]}

    def settings(self) -> dict[str, Any]:
        """Return its fields, None if derived, so that changed fields keep the rest consistent."""
        return {
            field.name: None if field.name in self._left_open else getattr(self, field.name) for field in fields(self)
        }

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, and derived fields recomputed."""
        return type(self)(**{**self.settings(), **changes})

    def _conflicts(self) -> Iterator[str]:
        """Yield what contradicts in the given fields."""
        if self.decoder_only and self.is_encoder_decoder:
            yield "a decoder_only model has no n_encoder_layers"
        if self.is_masked and self.translates:
            yield "a model with the objective masked does not translate"
        if self.is_recurrent:
            for setting in list_settings("model", ModelConfig):
                if setting.name in OF_BLOCKS and getattr(self, setting.name) not in {setting.default, "none"}:
                    yield f"{setting.name} is for transformer blocks, not for the architecture {self.architecture}"
            if self.is_encoder_decoder and self.d_model % 2:
                yield f"two directions of an encoder need an even d_model, not {self.d_model}"
        elif self.d_head is None and self.d_model % self.n_heads:
            yield f"n_heads {self.n_heads} does not divide d_model {self.d_model}"

    def _conflicts_in_blocks(self) -> Iterator[str]:
        """Yield what contradicts in transformer blocks, derived fields among them."""
        if self.n_heads % self.n_kv_heads:
            yield f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}"
        if self.positions == "t5" and self.max_distance <= _SINGLE:
            yield f"positions t5 need a max_distance over {_SINGLE}, not {self.max_distance}"
        if (self.positions.startswith("sinusoidal") or self.has_tree_depths) and self.d_model % 2:
            yield f"sinusoidal positions, also in trees, need an even d_model, not {self.d_model}"
        if self.parallel_residual and (self.is_encoder_decoder or self.norm_position == "post"):
            yield "parallel_residual is for decoder-only models with norm_position pre"
        if self.positions == "rotary" and (self.rotary_dim < 2 or self.rotary_dim % 2):
            yield (
                f"positions rotary need an even number of a head's dimensions, not {self.rotary_dim} of {self.d_head} "
                "(d_model, n_heads, d_head, rotary_fraction)"
            )
        if self.rope_slow is not None and self.rope_fast is not None and self.rope_slow >= self.rope_fast:
            yield f"rope_slow {self.rope_slow} is not below rope_fast {self.rope_fast}"
        if self.syntax != "none" and not self.is_encoder_decoder:
            yield "syntax is for the encoder of a translation model"
        if self.attention == "linformer" and not (self.is_encoder_decoder or self.is_masked):
            yield "attention linformer is for encoders and masked models: it mixes later positions into earlier ones"
        if self.attention != "full" and (self.has_tree_distances or self.positions in DISTANCES):
            yield f"distances (positions alibi, relative and t5, syntax) need attention full, not {self.attention}"
        if self.experts and self.experts_per_token > self.experts:
            yield f"experts_per_token {self.experts_per_token} is more than experts {self.experts}"

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

    @property
    def needs_key_positions(self) -> bool:
        """Return whether attention needs the positions of keys."""
        return self.positions in DISTANCES or self.attention in {"window", "bigbird"}

    def has_compressed_attention(self, layer: int) -> bool:
        """Return whether a layer, from 0 in its stack, has compressed attention: every second one."""
        return self.attention == "compressed" and layer % 2 == 1

    @property
    def position_limit(self) -> int | None:
        """Return the longest sequence that the model has positions for; None if unlimited."""
        ends = self.positions == "learned" or self.attention == "linformer"
        return self.context_length if ends else None

    @property
    def has_tree_depths(self) -> bool:
        """Return whether it uses the depth of words in their dependency tree."""
        return self.syntax in {"depth", "both"}

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


def check_heads_given(*models: ModelConfig, are_given: bool) -> None:
    """Raise UsageError unless dependency heads are given exactly if at least one of the models reads trees."""
    reads_trees = any(model.syntax != "none" for model in models)
    if reads_trees != are_given:
        needs = "needs" if reads_trees else "takes no"
        raise UsageError(f"a model with {'a' if reads_trees else 'no'} setting model.syntax {needs} dependency_heads")
