"""The description of a family of transformers models: settings and tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lm.config.portable_architectures import AllowedValues

CAUSAL_LM, MASKED_LM, SEQUENCE_CLASSIFICATION, SEQ2SEQ_LM = (
    "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM",
)  # fmt: skip
"""The auto classes of transformers."""
Layout = Literal["rows", "transposed", "by head", "one row"]
"""How a family stores the rows of our matrix.

rows: as they are, in one tensor or in several that follow each other; transposed: inputs first; by head: queries, keys
and values of a head beside each other, where ours have all queries first; one row: a vector as a matrix of one row.
"""
WindowStyle = Literal["never", "by width", "by switch"]
"""How a family configures a sliding window: never, by its width, or by a switch.

By switch, the first `max_window_layers` layers see all nevertheless, and `layer_types` may say the same layer by layer.
"""


@dataclass(frozen=True)
class FieldMapping:
    """A key of config.json and the ModelConfig field with the same meaning.

    Attributes:
        default: transformers' value for a missing key.
        values: their values and ours, if spelled differently; the first of several for ours is written.
        also: further values of ours that are exported as theirs, with zeros for what theirs adds.
    """

    config_key: str
    model_field: str
    default: Any = None
    values: Mapping[Any, Any] | None = None
    also: Mapping[Any, Any] = field(default_factory=dict)

    def to_json_value(self, value: Any) -> Any:
        """Return their value for one of ours."""
        if value in self.also:
            return self.also[value]
        if self.values is None:
            return value
        return next((theirs for theirs, ours in self.values.items() if ours == value), None)


@dataclass(frozen=True)
class Part:
    """The tensors of a family for one of our layers, without `.weight` and `.bias`."""

    names: tuple[str, ...]
    layout: Layout = "rows"


@dataclass(frozen=True)
class Rotary:
    """The keys of rotary positions, except scaling, and the default rotary fraction."""

    base: str = "rope_theta"
    fraction: str = "partial_rotary_factor"
    default_fraction: float = 1.0


@dataclass(frozen=True)
class Family:
    """A kind of model in transformers.

    Attributes:
        model_type: its name in config.json.
        architecture: the class of the model.
        auto: the class that loads it.
        settings: what varies.
        requires: what doesn't.
        implies: fields of our ModelConfig that follow from the family and from nothing in config.json.
        neutral: keys of config.json whose other values mean another model, with those that they may have.
        prefix: of the names of all tensors but the output layer's, which some files leave out.
        outer: names of what there is once; those of our layers to theirs.
        inner: names of what each block has.
        block: how the names of a block begin, after the prefix; of one that reads a source, in a decoder.
        encoder_block: the same for an encoder.
        head: the names that the output layer has, the first of which is written.
        tensors: names of tensors that are alone in what we name them after; ours to theirs, in full.
        renamed: endings of tensors that older files have, or of copies, with the current ones.
        unused: endings of buffers that transformers computes and reads from no file, and of heads that the architecture
            does not have.
        sinusoids: ending of tensors that must hold sinusoidal positions.
        has_biases: whether norms and linear layers, but for those of attention where a setting says it, have biases,
            which are zero where ours have none.
        rotary: of families with rotary positions.
        windowed: how it says that attention sees a window.
        keeps_names: whether tensors are named and kept as ours; it is a model of ours then, which takes its code along.
        pre_tokenizer_pattern: the regex by which transformers splits texts into words after NFC, whatever
            tokenizer.json says.
    """

    model_type: str
    architecture: str
    settings: tuple[FieldMapping, ...]
    requires: AllowedValues
    prefix: str
    outer: Mapping[str, str]
    inner: Mapping[str, Part]
    block: str
    encoder_block: str = ""
    auto: str = CAUSAL_LM
    head: tuple[str, ...] = ("lm_head",)
    implies: Mapping[str, Any] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    sinusoids: str = ""
    has_biases: bool = False
    rotary: Rotary | None = None
    windowed: WindowStyle = "never"
    keeps_names: bool = False
    pre_tokenizer_pattern: str | None = None


ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh", "relu": "relu", "relu2": "relu2", "silu": "silu", "swish": "silu",
}  # fmt: skip
"""Activations by transformers' name."""
