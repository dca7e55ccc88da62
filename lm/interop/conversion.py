"""Convert a configuration and tensors between our model and a family of transformers, without changing a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.config.settings import build_config
from lm.errors import InputError, UsageError
from lm.interop.families import CUSTOM_FAMILIES, FAMILIES, SEQUENCE_CLASSIFICATION, Family, Neutral
from lm.model import build_model, init_empty_weights
from lm.model.positions import alibi_slopes, rotary_frequencies, t5_buckets

_SPELLINGS: Mapping[str, tuple[tuple[Any, Any], ...]] = {
    "activation": (
        ("gelu", "gelu"), ("gelu_new", "gelu-tanh"), ("gelu_pytorch_tanh", "gelu-tanh"),
        ("gelu_fast", "gelu-tanh"), ("relu", "relu"), ("relu2", "relu2"), ("silu", "silu"), ("swish", "silu"),
    ),
    "attention_bias": ((True, "all"), (False, "none"), (True, "inputs")),
}  # fmt: skip
"""Their values and ours of fields that are spelled differently; the first is used."""
_NEUTRAL: Neutral = {"quantization_config": (None,), "auto_map": (None,), "is_encoder_decoder": (False,)}
"""Keys that are not supported in any family, with the values that they may have."""
_ORIGINAL = "original_max_position_embeddings"
_SCALING_KEYS: Mapping[str, Mapping[str, str]] = {
    "linear": {"factor": "rope_factor"},
    "llama3": {
        "factor": "rope_factor", _ORIGINAL: "rope_context", "low_freq_factor": "rope_slow",
        "high_freq_factor": "rope_fast",
    },
    "yarn": {
        "factor": "rope_factor", _ORIGINAL: "rope_context", "beta_slow": "rope_slow", "beta_fast": "rope_fast",
        "attention_factor": "rope_temperature",
    },
}  # fmt: skip
"""The parameters of each kind of rotary scaling, and our fields."""
_NEUTRAL_SCALING: Neutral = {
    "rope_type": ("default", *_SCALING_KEYS), "truncate": (True,), "mscale": (None,), "mscale_all_dim": (None,),
}  # fmt: skip
_SLIDING, _FULL = "sliding_attention", "full_attention"


def to_json(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the settings of a model for config.json, without tokenizer settings."""
    values = {key: _spell(config, name, is_custom=family.takes_code) for key, (name, _) in family.keys.items()}
    if family.rotary:
        base, fraction, default = family.rotary
        values |= {base: config.rope_base, **({fraction: config.rotary_fraction} if default != 1 else {})}
        if scaling := _SCALING_KEYS.get(config.rope_scaling):
            parameters = {key: getattr(config, name) for key, name in scaling.items()}
            values["rope_scaling"] = {"rope_type": config.rope_scaling, **parameters}
    if family.window:
        is_on = config.attention == "window"
        values["sliding_window"] = config.attention_window
        if family.window == "switch":
            values |= {"use_sliding_window": is_on, "layer_types": [_SLIDING if is_on else _FULL] * config.n_layers}
    if config.labels:
        values["id2label"] = {str(number): label for number, label in enumerate(config.labels)}
        values["label2id"] = {label: number for number, label in enumerate(config.labels)}
    if family.takes_code:
        values |= _derive_positions(config)
    neutral = {key: first for key, (first, *_) in family.neutral.items() if first is not None}
    return {"architectures": [family.architecture], "model_type": family.model_type, **values, **neutral}


def _derive_positions(config: ModelConfig) -> dict[str, Any]:
    """Return what the code in `remote/` needs of positions: frequencies, slopes of heads, or buckets of distances."""
    if config.positions == "alibi":
        return {"slopes": alibi_slopes(config.n_heads)}
    if config.positions == "t5":
        is_causal, farthest = config.objective == "causal", config.max_distance
        distances = torch.arange(-farthest, 1 if is_causal else farthest + 1)
        return {"buckets": t5_buckets(distances, is_causal=is_causal, max_distance=farthest).tolist()}
    if config.positions.startswith("sinusoidal"):
        return {"frequencies": [10_000.0 ** (-feature / config.d_model) for feature in range(0, config.d_model, 2)]}
    return {"frequencies": rotary_frequencies(config).tolist()} if config.positions == "rotary" else {}


def _spell(config: ModelConfig, name: str, *, is_custom: bool) -> Any:
    value = getattr(config, name)
    if is_custom:
        return value
    if name == "token_types":
        return value or 1  # as BERT has one at least
    return next((theirs for theirs, ours in _SPELLINGS.get(name, ()) if ours == value), value)


def from_json(values: Any, path: Path) -> tuple[Family, ModelConfig]:
    """Parse config.json: the family, and the model config.

    Raises:
        InputError: the model is not supported; the message names the key.
    """
    if not isinstance(values, Mapping) or "model_type" not in values:
        raise InputError(f"{path}: has no model_type; name the folder of a model in transformers' layout")
    families = [family for family in (*FAMILIES, *CUSTOM_FAMILIES) if family.model_type == values["model_type"]]
    for family in families:
        if values.get("architectures") == [family.architecture]:
            return family, parse_config(values, family, path)
    raise _unsupported(path, "architectures" if families else "model_type", values)


def parse_config(values: Mapping[str, Any], family: Family, path: Path) -> ModelConfig:
    """Parse the config.json of a family; InputError as of `from_json`."""
    check_neutral(values, {**_NEUTRAL, **family.neutral}, path)
    fields: dict[str, Any] = {}
    for key, (name, default) in family.keys.items():
        value = values.get(key, default)
        if name in _SPELLINGS and not family.takes_code and value is not None:
            value = next((ours for theirs, ours in _SPELLINGS[name] if theirs == value), None)
        is_other = name in {"n_heads", "d_ff"} and fields.get(name, value) != value  # of encoder and decoder
        is_missing = key in family.sizes and not family.takes_code
        if is_other or (value is None and (is_missing or values.get(key) is not None)):
            raise _unsupported(path, key, values)
        fields[name] = value
    if family.auto == SEQUENCE_CLASSIFICATION:
        fields["labels"] = _read_labels(values, path)
    if family.rotary:
        fields |= _read_rotary(values, family.rotary, path)
    try:
        implied = {name: allowed[0] for name, allowed in family.allowed.items() if allowed}
        config = build_config(ModelConfig, {**implied, **fields}, where=str(path))
        return config.replace(**_read_window(values, config, family, path)) if family.window else config
    except UsageError as error:
        raise InputError(str(error)) from None


def _read_labels(values: Mapping[str, Any], path: Path) -> tuple[Any, ...]:
    labels = values.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # as transformers leaves out what it calls so
    if not isinstance(labels, Mapping) or labels.keys() != {str(number) for number in range(max(2, len(labels)))}:
        raise _unsupported(path, "id2label", values)
    return tuple(labels[str(number)] for number in range(len(labels)))


def _read_rotary(values: Mapping[str, Any], rotary: tuple[str, str, float], path: Path) -> dict[str, Any]:
    """Return our fields of rotary positions, from keys of transformers 4 or 5."""
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}  # in transformers' order
    if not isinstance(scaling, Mapping):
        raise _unsupported(path, "rope_scaling", {"rope_scaling": scaling})
    base, fraction, default = rotary
    scaling = {"rope_type": scaling.get("type", "default"), **scaling}
    check_neutral(scaling, _NEUTRAL_SCALING, path)
    fields = {
        "rope_base": scaling.get("rope_theta", values.get(base, 10_000.0)),
        "rotary_fraction": scaling.get("partial_rotary_factor", values.get(fraction, default)),
    }
    if (kind := scaling["rope_type"]) == "default":
        return fields
    if scaling.get("factor") is None:
        raise _unsupported(path, "factor", scaling)
    parameters = {**scaling, _ORIGINAL: values.get(_ORIGINAL) or scaling.get(_ORIGINAL)}  # as transformers prefers
    return {**fields, "rope_scaling": kind, **{name: parameters.get(key) for key, name in _SCALING_KEYS[kind].items()}}


def _read_window(values: Mapping[str, Any], config: ModelConfig, family: Family, path: Path) -> dict[str, Any]:
    """Return our fields of the attention window, which all layers have or none."""
    width = values.get("sliding_window", 4096)
    if family.window == "switch":
        first = values.get("max_window_layers", 28)
        kinds = values.get("layer_types") or [_SLIDING if n >= first else _FULL for n in range(config.n_layers)]
        if not values.get("use_sliding_window") or kinds == [_FULL] * config.n_layers:
            width = None
        elif kinds != [_SLIDING] * config.n_layers:
            raise _unsupported(path, "layer_types", {"layer_types": kinds})
    return {"attention": "full"} if width is None else {"attention": "window", "attention_window": width}


def check_neutral(values: Mapping[str, Any], neutral: Neutral, path: Path) -> None:
    """Raise InputError if a key has another value than those that are supported."""
    for key, allowed in neutral.items():
        if key in values and values[key] not in allowed:
            raise _unsupported(path, key, values)


def _unsupported(path: Path, key: str, values: Mapping[str, Any]) -> InputError:
    return InputError(f"{path}: {key} {values.get(key)!r:.60} is not supported by lm")


_BLOCK = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Placement:
    """The tensors of a family that hold one of ours: their names, the number of our rows in each, and the layout."""

    names: list[str]
    sizes: list[int]
    layout: str


def locate_tensor(name: str, rows: int, config: ModelConfig, family: Family) -> Placement:
    """Return where a family stores one of our tensors.

    Args:
        name: of ours, such as "decoder.blocks.3.attention.input.weight".
        rows: its first dimension.
    """
    if family.takes_code:
        return Placement([name], [rows], "rows")
    pattern, number = _BLOCK.sub(".#.", name), _BLOCK.search(name)
    layer, _, kind = pattern.rpartition(".")
    if pattern in family.layers:
        names = [family.layers[pattern]]
    else:
        names = [f"{theirs}.{kind}" for theirs in family.layers[layer].split()]
    sizes = [rows // len(names)] * len(names)
    if layer.endswith("attention.input"):
        key_size = config.n_kv_heads * config.d_head
        sizes = {1: [rows], 2: [rows - 2 * key_size, 2 * key_size], 3: [rows - 2 * key_size, key_size, key_size]}[
            len(names)
        ]
    applies = {
        "transposed": number is not None and kind == "weight" and not layer.endswith("norm"),
        "by head": layer.endswith("attention.input"),
        "one row": name == "output_bias",
    }.get(family.layout, False)
    names = [theirs.replace("#", number[1] if number else "") for theirs in names]
    return Placement(names, sizes, family.layout if applies else "rows")


def to_family_tensors(ours: Mapping[str, Tensor], config: ModelConfig, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a model with the family's names and layouts; tensors that only the family has are zero."""
    whole = config if family.takes_code else parse_config(to_json(config, family), family, Path())
    dtype = next(iter(ours.values())).dtype
    for name, empty in {**empty_tensors(whole), **ours}.items():
        value = ours[name] if name in ours else torch.zeros_like(empty, dtype=dtype, device="cpu")
        yield from split_tensor(value, locate_tensor(name, len(value), config, family), config)


def empty_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Return the tensors of a model by name, without values."""
    with init_empty_weights():
        return dict(build_model(config).state_dict())


def split_tensor(value: Tensor, placement: Placement, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a family that hold one of ours."""
    if placement.layout == "by head":
        value = swap_groups(value, 3, config.n_heads)
    for name, part in zip(placement.names, value.split(placement.sizes), strict=True):
        laid_out = part.T if placement.layout == "transposed" else part[None] if placement.layout == "one row" else part
        yield name, laid_out.contiguous()


def from_family_tensors(
    name: str, rows: int, config: ModelConfig, family: Family, *, read: Callable[[str], Tensor]
) -> Tensor:
    """Return one of our tensors; `read` returns one of theirs by name."""
    placement = locate_tensor(name, rows, config, family)
    parts = [read(theirs) for theirs in placement.names]
    value = parts[0] if len(parts) == 1 else torch.cat(parts)
    if placement.layout == "by head":
        value = swap_groups(value, config.n_heads, 3)
    laid_out = value.T if placement.layout == "transposed" else value[0] if placement.layout == "one row" else value
    return laid_out.contiguous()


def swap_groups(value: Tensor, outer: int, inner: int) -> Tensor:
    """Regroup rows: (outer·inner·head, …) -> (inner·outer·head, …)."""
    return value.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)
