"""The shape of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lm.config.options import Checked, option, options
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
Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]
Objective = Literal["causal", "masked"]

DISTANCES = ("alibi", "relative", "t5")
"""Positions of which only the distances matter."""
_FARTHEST = {"relative": 16, "t5": 128}
"""Distances from which positions are all alike, as published."""
_FARTHEST_IN_TREE = 16
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

_OF_EXPERTS = ("experts_per_token", "expert_every", "expert_capacity", "gate_noise")
"""Settings that only a model with experts has."""

_OF_ATTENTION: Mapping[AttentionKind, Mapping[str, int]] = {
    "full": {},
    "window": {"attention_window": 128},
    "bigbird": {"attention_block": 32, "global_blocks": 2, "random_blocks": 3},
    "linformer": {"attention_rank": 128},
    "compressed": {"attention_block": 256, "attention_stride": 3},
}
"""The settings that each kind of attention has, with what they are unless set: for blocks and strides as published."""


@dataclass(frozen=True)
class ModelConfig(Checked):
    """A stack of layers. With `n_encoder_layers` it is an encoder-decoder, without a decoder-only or a masked model.

    A decoder-only model continues texts, or with `decoder_only` it translates (Transformer-D, Liu et al. 2018).

    Attributes:
        vocab_size: tokens that the model knows, and predicts.
        source_vocab_size: of an encoder-decoder whose source has a vocabulary of its own.
        labels: of a masked model that was made a classifier, what it chooses from; its output layer has one row each.
    """

    vocab_size: int = 256
    source_vocab_size: int | None = None
    labels: tuple[str, ...] = ()
    context_length: int = option(
        256, "Longest sequence the model is trained on, in tokens.", minimum=1, flag="--context"
    )
    architecture: Architecture = option(
        "transformer",
        "Transformer blocks, or recurrent layers, for which a preset's Muon and shape of blocks are left out.",
    )
    recurrent_attention: RecurrentScores | None = option(
        None, "How a recurrent decoder scores the positions of the source [default: additive]."
    )
    d_model: int = option(256, "Width of the residual stream, or of recurrent layers.", minimum=1)
    n_layers: int = option(4, "Layers (blocks) of the decoder.", minimum=1)
    n_encoder_layers: int = option(0, "Layers of the encoder; 0 makes a decoder-only model.", minimum=0)
    decoder_only: bool = option(
        False,
        "Translate without an encoder: one causal stack reads source and target one after the other. It has as many "
        "layers as a preset's encoder and decoder together.",
    )
    n_heads: int = option(4, "Attention heads; they divide d_model.", minimum=1)
    n_kv_heads: int | None = option(
        None, "Key/value heads, shared by groups of query heads [default: n_heads].", minimum=1
    )
    d_ff: int | None = option(
        None, "Width of the feed-forward layer [default: 4 d_model; 8/3 d_model for swiglu].", minimum=1
    )
    attention: AttentionKind = option(
        "full",
        "What self-attention sees: all; a window; window, global and random blocks (bigbird); the length projected to "
        "a low rank (linformer, in encoders and masked models); keys and values by strided convolution and local "
        "blocks in turns (compressed).",
    )
    attention_window: int | None = option(
        None, "Positions that a query sees up to its own; on either side where both are seen [default: 128].", minimum=1
    )
    attention_block: int | None = option(
        None,
        "Positions of a block, of bigbird or in compressed attention's local layers [default: 32; 256].",
        minimum=1,
    )
    global_blocks: int | None = option(
        None, "First blocks, of bigbird, that all see; where both sides are seen they see all [default: 2].", minimum=0
    )
    random_blocks: int | None = option(
        None, "Blocks drawn at random, of bigbird, that each block sees [default: 3].", minimum=0
    )
    attention_rank: int | None = option(
        None, "Keys and values that linformer projects the length to [default: 128].", minimum=1
    )
    attention_stride: int | None = option(
        None, "Positions that each key and value of compressed attention covers [default: 3].", minimum=2
    )
    positions: Positions = option(
        "rotary", "How positions are encoded; learned ones end at the context, the others go on."
    )
    max_distance: int | None = option(
        None,
        "Distance from which relative positions, in trees too, are all alike [default: 16; 128 for t5].",
        minimum=1,
    )
    syntax: Syntax = option(
        "none",
        "Positions in the dependency trees of sources (--heads), beside --positions: the depth of each word, the "
        "distance between two of them, or both; for translation.",
    )
    rope_base: float = option(10_000.0, "Base of the rotary frequencies.", minimum=1)
    d_head: int | None = option(None, "Width of each attention head [default: d_model / n_heads].", minimum=1)
    rotary_share: float = option(
        1.0, "Share of each head's width that rotary positions turn; Pythia has 0.25.", minimum=0, maximum=1
    )
    rope_scaling: RotaryScaling = option(
        "none", "How rotary frequencies are slowed down for a context longer than the one trained on."
    )
    rope_factor: float | None = option(None, "By how much they are slowed down [default: 1].", minimum=1)
    rope_context: int | None = option(
        None, "Context trained on before, for llama3 and yarn [default: the context].", minimum=1
    )
    rope_slow: float | None = option(
        None, "Turns in that context up to which a frequency is slowed down in full [default: 1].", minimum=0.001
    )
    rope_fast: float | None = option(
        None, "Turns in that context from which a frequency stays as it is [default: 4; 32 for yarn].", minimum=0
    )
    rope_temperature: float | None = option(
        None, "Factor of rotated queries and keys, for yarn [default: 1 + 0.1 ln(factor)].", minimum=0
    )
    attention_bias: AttentionBias | None = option(
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
    attention_dropout: float | None = option(
        None, "Dropped share of attention weights [default: as --dropout].", minimum=0, maximum=0.99
    )
    tie_embeddings: bool = option(True, "Use the token embedding as the output layer too.")
    scale_embeddings: bool = option(False, "Multiply embeddings by the square root of d_model.")
    init_std: float | None = option(
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
        0, "Experts in the place of a feed-forward layer; each token goes through a few of them. 0 has none.", minimum=0
    )
    experts_per_token: int = option(1, "Experts that each token goes through.", minimum=1)
    expert_every: int = option(1, "Have experts in every block, or with N in every Nth.", minimum=1)
    expert_capacity: float = option(
        0.0,
        "In training, most tokens that an expert takes, in even shares of a batch; those beyond go past it. 0 is no "
        "limit.",
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
    output_transform: bool = option(
        False,
        "As BERT does, send final states through one more linear layer, activation and normalisation before the output "
        "layer, and give that a bias.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.vocab_size < 1:
            raise UsageError(f"vocab_size must be at least 1, not {self.vocab_size}")
        if self.decoder_only and self.is_encoder_decoder:
            raise UsageError("a --decoder-only model has no encoder: leave out --n-encoder-layers or --decoder-only")
        if self.decoder_only and self.source_vocab_size is not None:
            raise UsageError("source and target share one vocabulary where one stack reads both (--decoder-only)")
        if self.source_vocab_size is not None and not self.is_encoder_decoder:
            raise UsageError("source_vocab_size needs an encoder (--n-encoder-layers)")
        if self.recurrent_attention is not None and not (self.is_recurrent and self.is_encoder_decoder):
            raise UsageError(
                "only a recurrent encoder-decoder has --recurrent-attention (--architecture lstm or gru, with a source)"
            )
        self._check_objective()
        if self.is_recurrent:
            self._check_recurrent()
        else:
            self._check_blocks()

    def _check_objective(self) -> None:
        if self.is_masked and self.translates:
            flag = "--decoder-only" if self.decoder_only else "--n-encoder-layers"
            raise UsageError(f"a masked model is one stack that does not translate: leave out {flag} or --objective")
        if self.labels and not self.is_masked:
            raise UsageError("labels are for a classifier, which is a masked model (--objective masked)")
        if len(set(self.labels)) < len(self.labels) or not all(isinstance(label, str) for label in self.labels):
            raise UsageError("labels must be different texts")

    def _check_recurrent(self) -> None:
        for described in options(ModelConfig):
            value = getattr(self, described.name)
            if described.name in OF_BLOCKS and value not in {described.default, "none"}:
                raise UsageError(
                    f"{described.flag} is for transformer blocks, not for --architecture {self.architecture}"
                )
        if self.is_encoder_decoder and self.d_model % 2:
            raise UsageError(f"two directions of an encoder need an even d_model, not {self.d_model} (--d-model)")

    def _check_blocks(self) -> None:
        if self.d_head is None and self.d_model % self.n_heads:
            raise UsageError(f"n_heads {self.n_heads} does not divide d_model {self.d_model} (--n-heads, --d-model)")
        if self.n_heads % self.kv_heads:
            raise UsageError(f"n_kv_heads {self.kv_heads} does not divide n_heads {self.n_heads} (--n-kv-heads)")
        if self.max_distance is not None and self.positions not in _FARTHEST and not self.has_tree_distances:
            raise UsageError(f"{self.positions} positions have no max_distance (--max-distance, --positions)")
        if self.positions == "t5" and self.farthest <= _SINGLE:
            raise UsageError(f"t5 positions need a max_distance over {_SINGLE}, not {self.farthest} (--max-distance)")
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise UsageError(f"sinusoidal positions need an even d_model, not {self.d_model} (--d-model)")
        if self.parallel_residual and (self.is_encoder_decoder or self.norm_position == "post"):
            raise UsageError("parallel_residual is for decoder-only models that normalise before (--parallel-residual)")
        self._check_rotation()
        self._check_syntax()
        self._check_attention()
        self._check_experts()

    def _check_rotation(self) -> None:
        """UsageError for settings of rotary positions that do not go together."""
        if self.positions == "rotary" and self.d_head is None and self.head_size % 2:
            raise UsageError(f"rotary positions need an even head size, not {self.head_size} (--d-model / --n-heads)")
        if self.positions == "rotary" and (self.rotated < 2 or self.rotated % 2):
            raise UsageError(
                f"rotary positions turn an even part of a head, not {self.rotated} of {self.head_size} "
                "(--rotary-share, --d-head)"
            )
        if self.positions != "rotary" and (self.rotary_share != 1 or self.rope_scaling != "none"):
            flag = "--rope-scaling" if self.rotary_share == 1 else "--rotary-share"
            raise UsageError(f"{flag} is for rotary positions, not for {self.positions} ones (--positions)")
        if self.rope_slow is not None and self.rope_fast is not None and self.rope_slow >= self.rope_fast:
            raise UsageError(f"rope_slow {self.rope_slow} is not below rope_fast {self.rope_fast} (--rope-slow)")
        for name in _OF_SCALING["yarn"]:
            if getattr(self, name) is not None and name not in _OF_SCALING[self.rope_scaling]:
                raise UsageError(f"rope_scaling {self.rope_scaling} has no {name} (--{name.replace('_', '-')})")

    def _check_syntax(self) -> None:
        """UsageError where there is no source that could come with trees, or depths have no sinusoids."""
        if self.syntax != "none" and not self.is_encoder_decoder:
            raise UsageError("positions by syntax are for the encoder of a translation model (--syntax, --source)")
        if self.has_tree_depths and self.d_model % 2:
            raise UsageError(f"depths in trees need an even d_model, not {self.d_model} (--syntax, --d-model)")

    def _check_attention(self) -> None:
        """UsageError for settings of attention that do not go together."""
        elsewhere = {name for settings in _OF_ATTENTION.values() for name in settings} - self.attention_settings.keys()
        for described in options(ModelConfig):
            if described.name in elsewhere and getattr(self, described.name) is not None:
                raise UsageError(f"{self.attention} attention has no {described.name} ({described.flag}, --attention)")
        if self.attention == "linformer" and not (self.is_encoder_decoder or self.is_masked):
            raise UsageError(
                "linformer attention is for encoders and masked models: it mixes what comes later into what comes "
                "before (--attention)"
            )
        if self.attention != "full" and self.has_tree_distances:
            raise UsageError(f"distances in trees need full attention, not {self.attention} (--syntax, --attention)")
        if self.attention == "linformer" and self.positions in DISTANCES:
            raise UsageError(
                f"linformer attention has no distances for {self.positions} positions (--attention, --positions)"
            )

    def _check_experts(self) -> None:
        """UsageError for settings of experts that do not go together."""
        if not self.experts:
            for described in options(ModelConfig):
                if described.name in _OF_EXPERTS and getattr(self, described.name) != described.default:
                    raise UsageError(f"{described.name} is for a model with experts (--experts, {described.flag})")
            return
        if self.experts_per_token > self.experts:
            raise UsageError(
                f"experts_per_token {self.experts_per_token} is more than experts {self.experts} "
                "(--experts-per-token, --experts)"
            )
        if self.expert_every > max(self.n_layers, self.n_encoder_layers):
            raise UsageError(
                f"expert_every {self.expert_every} is more than there are layers: none would have experts "
                "(--expert-every)"
            )

    @property
    def is_recurrent(self) -> bool:
        """Whether its layers are recurrent, and know the order of tokens from that alone."""
        return self.architecture != "transformer"

    @property
    def is_masked(self) -> bool:
        """Whether it reads from both sides, and learns tokens that are masked, or labels."""
        return self.objective == "masked"

    @property
    def purpose(self) -> str:
        """What the model does with texts, for messages."""
        if self.is_masked:
            return "classifies texts" if self.labels else "fills blanks"
        return "translates" if self.translates else "continues texts"

    @property
    def recurrent_scores(self) -> RecurrentScores:
        """How a recurrent decoder attends to the source: additively unless set."""
        return self.recurrent_attention or "additive"

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has an encoder, which reads a source."""
        return self.n_encoder_layers > 0

    @property
    def translates(self) -> bool:
        """Whether the model reads a source and writes its translation."""
        return self.is_encoder_decoder or self.decoder_only

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0 in its stack, has experts in the place of its feed-forward layer."""
        return self.experts > 0 and (layer + 1) % self.expert_every == 0

    def pattern(self, name: str) -> int:
        """A setting of the kind of attention, as given or by default."""
        given: int | None = getattr(self, name)
        return _OF_ATTENTION[self.attention][name] if given is None else given

    @property
    def attention_settings(self) -> Mapping[str, int]:
        """The settings of the kind of attention, by field."""
        return {name: self.pattern(name) for name in _OF_ATTENTION[self.attention]}

    @property
    def places_keys(self) -> bool:
        """Whether attention has to know where the keys stand that it is given."""
        return self.positions in DISTANCES or self.attention in {"window", "bigbird"}

    def compresses(self, layer: int) -> bool:
        """Whether a layer, counted from 0 in its stack, sees compressed keys and values: every second one."""
        return self.attention == "compressed" and layer % 2 == 1

    @property
    def position_limit(self) -> int | None:
        """The longest sequence that the model has positions for; None if its positions go on without end."""
        ends = self.positions == "learned" or self.attention == "linformer"
        return self.context_length if ends else None

    @property
    def farthest(self) -> int:
        """The distance from which relative positions are all alike: as published unless set; 0 if there is none."""
        return self.max_distance or _FARTHEST.get(self.positions, 0)

    @property
    def has_tree_depths(self) -> bool:
        """Whether it knows how deep the words of a source are in their tree."""
        return self.syntax in {"depth", "both"}

    @property
    def has_tree_distances(self) -> bool:
        """Whether it knows how far the words of a source are from each other in their tree."""
        return self.syntax in {"distance", "both"}

    @property
    def farthest_in_tree(self) -> int:
        """The distance in a tree from which all are alike: 16 unless set."""
        return self.max_distance or _FARTHEST_IN_TREE

    @property
    def head_size(self) -> int:
        """Width of one attention head: an equal part of d_model unless set."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def rotated(self) -> int:
        """How much of a head's width rotary positions turn."""
        return int(self.head_size * self.rotary_share)

    @property
    def biased_attention(self) -> AttentionBias:
        """Which projections of attention have biases: all or none, as the other layers have them, unless set."""
        return self.attention_bias or ("all" if self.bias else "none")

    @property
    def kv_heads(self) -> int:
        """Key/value heads: as many as query heads unless set."""
        return self.n_kv_heads or self.n_heads

    @property
    def dropped_attention(self) -> float:
        """Dropped share of attention weights: as of everything else unless set."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def initial_std(self) -> float:
        """Standard deviation of the initial weights: as set, else 0.02·√(768 / d_model)."""
        return 0.02 * math.sqrt(768 / self.d_model) if self.init_std is None else self.init_std

    @property
    def feed_forward_width(self) -> int:
        """Hidden width of the feed-forward layer: 4 d_model unless set; for SwiGLU 8/3 d_model, to a multiple of 32."""
        if self.d_ff is not None:
            return self.d_ff
        return -(-8 * self.d_model // (3 * 32)) * 32 if self.activation == "swiglu" else 4 * self.d_model


OF_BLOCKS = frozenset(described.name for described in options(ModelConfig)) - _OF_ALL
"""The fields that describe transformer blocks, and say nothing of recurrent layers."""


def check_heads_given(*models: ModelConfig, are_given: bool) -> None:
    """UsageError unless heads of words are given to models of which one at least reads trees, and to no others."""
    reads_trees = any(model.syntax != "none" for model in models)
    if reads_trees and not are_given:
        raise UsageError("this model reads a dependency tree with each source: give files of heads (--heads)")
    if are_given and not reads_trees:
        raise UsageError("heads are for a model with --syntax depth, distance or both: leave out --heads")
