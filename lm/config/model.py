"""The shape of a model: which settings go together, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from lm.config.model_fields import AttentionKind, ModelFields, RotaryScaling
from lm.config.options import list_options
from lm.errors import UsageError

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


@dataclass(frozen=True)
class ModelConfig(ModelFields):
    """A stack of layers. With `n_encoder_layers` it is an encoder-decoder, without a decoder-only or a masked model.

    A decoder-only model continues texts, or with `decoder_only` it translates (Transformer-D, Liu et al. 2018).

    Fields that follow from others are computed once, when the config is made: later code reads the field.
    """

    _left_open: ClassVar[frozenset[str]] = frozenset()
    """The fields that follow from others in this config; no field itself, so that files and comparisons lack it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.vocab_size < 1:
            raise UsageError(f"vocab_size must be at least 1, not {self.vocab_size}")
        if self.decoder_only and self.is_encoder_decoder:
            raise UsageError(
                "a decoder-only model has no encoder: leave one of the two out",
                settings=("n_encoder_layers", "decoder_only"),
            )
        if self.decoder_only and self.source_vocab_size is not None:
            raise UsageError(
                "source and target share one vocabulary in a decoder-only model", settings=("decoder_only",)
            )
        if self.source_vocab_size is not None and not self.is_encoder_decoder:
            raise UsageError("source_vocab_size needs an encoder", settings=("n_encoder_layers",))
        self._check_objective()
        if self.is_recurrent:
            self._check_recurrent()
        elif self.d_head is None and self.d_model % self.n_heads:
            raise UsageError(
                f"n_heads {self.n_heads} does not divide d_model {self.d_model}", settings=("n_heads", "d_model")
            )
        derived = {name: value for name, value in self._derived_defaults().items() if getattr(self, name) is None}
        for name, value in {**derived, "_left_open": frozenset(derived)}.items():
            object.__setattr__(self, name, value)
        if not self.is_recurrent:
            self._check_blocks()

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

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 (any field)
        """Return a copy with some fields changed, and derived fields recomputed."""
        return type(self)(**{**self.settings(), **changes})

    def _check_objective(self) -> None:
        if self.is_masked and self.translates:
            translating = "decoder_only" if self.decoder_only else "n_encoder_layers"
            raise UsageError(
                "a masked model does not translate: leave one of the two out",
                settings=(translating, "objective"),
            )
        if self.labels and not self.is_masked:
            raise UsageError("labels are for a classifier, which is a masked model", settings=("objective=masked",))
        if self.token_types and not self.is_masked:
            raise UsageError("token_types are for masked models", settings=("token_types", "objective=masked"))
        if len(set(self.labels)) < len(self.labels) or not all(isinstance(label, str) for label in self.labels):
            raise UsageError("labels must be different texts")

    def _check_recurrent(self) -> None:
        for option in list_options(ModelConfig):
            value = getattr(self, option.name)
            if option.name in OF_BLOCKS and value not in {option.default, "none"}:
                raise UsageError(
                    f"{option.name} is for transformer blocks, not for {self.architecture} layers",
                    settings=(option.setting, "architecture"),
                )
        if self.is_encoder_decoder and self.d_model % 2:
            raise UsageError(
                f"two directions of an encoder need an even d_model, not {self.d_model}", settings=("d_model",)
            )

    def _check_blocks(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise UsageError(
                f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}", settings=("n_kv_heads",)
            )
        if self.positions == "t5" and self.max_distance <= _SINGLE:
            raise UsageError(
                f"t5 positions need a max_distance over {_SINGLE}, not {self.max_distance}", settings=("max_distance",)
            )
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise UsageError(f"sinusoidal positions need an even d_model, not {self.d_model}", settings=("d_model",))
        if self.parallel_residual and (self.is_encoder_decoder or self.norm_position == "post"):
            raise UsageError(
                "parallel_residual is for decoder-only models that normalise before", settings=("parallel_residual",)
            )
        self._check_rotation()
        self._check_syntax()
        self._check_attention()
        self._check_experts()

    def _check_rotation(self) -> None:
        if self.positions == "rotary" and self.rotary_dim % 2 and self.d_head * self.n_heads == self.d_model:
            raise UsageError(
                f"rotary positions need an even head size, not {self.d_head}", settings=("d_model", "n_heads")
            )
        if self.positions == "rotary" and (self.rotary_dim < 2 or self.rotary_dim % 2):
            raise UsageError(
                f"rotary positions need an even number of a head's dimensions, not {self.rotary_dim} of {self.d_head}",
                settings=("rotary_fraction", "d_head"),
            )
        if self.rope_slow is not None and self.rope_fast is not None and self.rope_slow >= self.rope_fast:
            raise UsageError(
                f"rope_slow {self.rope_slow} is not below rope_fast {self.rope_fast}",
                settings=("rope_slow", "rope_fast"),
            )

    def _check_syntax(self) -> None:
        if self.syntax != "none" and not self.is_encoder_decoder:
            raise UsageError(
                "positions by syntax are for the encoder of a translation model", settings=("syntax", "source")
            )
        if self.has_tree_depths and self.d_model % 2:
            raise UsageError(
                f"depths in trees need an even d_model, not {self.d_model}", settings=("syntax", "d_model")
            )

    def _check_attention(self) -> None:
        if self.attention == "linformer" and not (self.is_encoder_decoder or self.is_masked):
            raise UsageError(
                "linformer attention is for encoders and masked models: it mixes what comes later into what comes "
                "before",
                settings=("attention",),
            )
        if self.attention != "full" and self.has_tree_distances:
            raise UsageError(
                f"distances in trees need full attention, not {self.attention}", settings=("syntax", "attention")
            )
        if self.attention == "linformer" and self.positions in DISTANCES:
            raise UsageError(
                f"linformer attention has no distances for {self.positions} positions",
                settings=("attention", "positions"),
            )

    def _check_experts(self) -> None:
        if not self.experts:
            return
        if self.experts_per_token > self.experts:
            raise UsageError(
                f"experts_per_token {self.experts_per_token} is more than experts {self.experts}",
                settings=("experts_per_token", "experts"),
            )
        if self.expert_every > max(self.n_layers, self.n_encoder_layers):
            raise UsageError(
                f"expert_every {self.expert_every} is more than there are layers: none would have experts",
                settings=("expert_every",),
            )

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
    def attention_settings(self) -> Mapping[str, int]:
        """Return the settings of the kind of attention, by field."""
        return {name: getattr(self, name) for name in _OF_ATTENTION[self.attention]}

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


OF_BLOCKS = frozenset(option.name for option in list_options(ModelConfig)) - _OF_ALL
"""The fields that describe transformer blocks, and say nothing of recurrent layers."""


def check_heads_given(*models: ModelConfig, are_given: bool) -> None:
    """Raise UsageError unless heads are given exactly if at least one of the models reads trees."""
    reads_trees = any(model.syntax != "none" for model in models)
    if reads_trees and not are_given:
        raise UsageError(
            "this model reads a dependency tree with each source: give files of heads", settings=("heads",)
        )
    if are_given and not reads_trees:
        raise UsageError(
            "heads are for a model whose syntax is depth, distance or both: leave them out", settings=("heads",)
        )
