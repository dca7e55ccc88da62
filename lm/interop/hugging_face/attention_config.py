"""Rotary positions and the attention window in config.json.

Rotary positions have a base, a rotary fraction and scaling. A sliding window is always on in Mistral, optional in Qwen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.model import ModelConfig
from lm.errors import InputError
from lm.interop.hugging_face.family_schema import Rotary, WindowStyle

_CONTEXT = "original_max_position_embeddings"
_SCALING_KEYS: Mapping[str, Mapping[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor", _CONTEXT: "context", "low_freq_factor": "slow",
        "high_freq_factor": "fast",
    },
    "yarn": {
        "factor": "factor", _CONTEXT: "context", "beta_slow": "slow", "beta_fast": "fast",
        "attention_factor": "temperature",
    },
}  # fmt: skip
"""The parameters of each scaling type: their keys, and our fields without `rope_`."""
_OF_YARN = ("mscale", "mscale_all_dim")
"""Keys that can determine the temperature."""
_DEFAULT_WIDTH, _DEFAULT_FULL_LAYERS = 4096, 28
_SLIDING, _FULL = "sliding_attention", "full_attention"


def rotary_to_json(config: ModelConfig, rotary: Rotary) -> dict[str, Any]:
    """Return the config.json keys of rotary positions."""
    keys: dict[str, Any] = {rotary.base: config.rope_base}
    if rotary.default_fraction != 1 or config.rotary_fraction != 1:
        keys[rotary.fraction] = config.rotary_fraction
    if config.rope_scaling != "none":
        scaled = {
            theirs: getattr(config, f"rope_{name}") for theirs, name in _SCALING_KEYS[config.rope_scaling].items()
        }
        keys["rope_scaling"] = {"rope_type": config.rope_scaling, **scaled}
    return keys


def rotary_from_json(values: Mapping[str, Any], rotary: Rotary, *, context_length: int, path: Path) -> dict[str, Any]:
    """Return our fields of rotary positions, from keys of transformers 4 or 5.

    Raises:
        InputError: it is not supported.
    """
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise InputError(f"{path}: rope_scaling must be an object of keys and values")
    fraction = values.get(rotary.fraction, values.get("partial_rotary_factor", rotary.default_fraction))
    fields = {
        "rope_base": scaling.get("rope_theta", values.get(rotary.base, values.get("rope_theta", 10_000.0))),
        "rotary_fraction": scaling.get("partial_rotary_factor", fraction),
    }
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return fields
    if not isinstance(kind, str) or kind not in _SCALING_KEYS:
        raise InputError(f"{path}: rope_type {kind!r} is not one of default, {', '.join(_SCALING_KEYS)}")
    if scaling.get("truncate", True) is not True:
        raise InputError(f"{path}: truncate {scaling['truncate']!r} is not supported by lm")
    scaling_values = {theirs: scaling.get(theirs) for theirs in (*_SCALING_KEYS[kind], *_OF_YARN)}
    if (above := values.get(_CONTEXT)) is not None and _CONTEXT in scaling_values:
        scaling_values[_CONTEXT] = above  # which transformers prefers
    wrong = next((name for name, value in scaling_values.items() if not _is_number(value)), None)
    if wrong or scaling_values["factor"] is None:
        raise InputError(f"{path}: rope_scaling {kind} needs a number as {wrong or 'factor'}")
    return {**fields, "rope_scaling": kind, **_read_scaling(scaling_values, kind, context_length)}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12)


def _read_scaling(values: Mapping[str, Any], kind: str, context_length: int) -> dict[str, Any]:
    fields = {f"rope_{ours}": values[theirs] for theirs, ours in _SCALING_KEYS[kind].items()}
    if "rope_context" in fields:
        fields["rope_context"] = fields["rope_context"] or context_length
    if kind == "yarn" and fields["rope_temperature"] is None and all(values[name] for name in _OF_YARN):
        key_factor, factor_of_all = (1 + 0.1 * values[name] * math.log(max(1, values["factor"])) for name in _OF_YARN)
        fields["rope_temperature"] = key_factor / factor_of_all
    return fields


def window_to_json(config: ModelConfig, windowed: WindowStyle) -> dict[str, Any]:
    """Return the config.json keys of the attention window."""
    width = config.attention_window if config.attention == "window" else None
    if windowed == "never":
        return {}
    if windowed == "by width":
        return {"sliding_window": width}
    if width is None:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True, "sliding_window": width, "max_window_layers": 0,
        "layer_types": [_SLIDING] * config.n_layers,
    }  # fmt: skip


def window_from_json(values: Mapping[str, Any], windowed: WindowStyle, *, n_layers: int, path: Path) -> dict[str, Any]:
    """Return our fields of the attention window.

    Raises:
        InputError: only some layers use a window.
    """
    if windowed == "never":
        return {}
    width = values.get("sliding_window", _DEFAULT_WIDTH)
    if windowed == "by switch" and not _is_switched_on(values, n_layers, path):
        return {}
    return {} if width is None else {"attention": "window", "attention_window": width}


def _is_switched_on(values: Mapping[str, Any], n_layers: int, path: Path) -> bool:
    """Return whether all layers use a window; False if none does."""
    if not values.get("use_sliding_window", False):
        return False
    kinds, full = values.get("layer_types"), values.get("max_window_layers", _DEFAULT_FULL_LAYERS)
    if isinstance(kinds, list):
        if kinds and all(kind == kinds[0] for kind in kinds) and kinds[0] in (_SLIDING, _FULL):
            return bool(kinds[0] == _SLIDING)
        raise InputError(f"{path}: layer_types of different kinds are not supported by lm")
    if isinstance(full, int) and (full == 0 or full >= n_layers):
        return full == 0
    raise InputError(f"{path}: max_window_layers {full!r} is not supported by lm: all layers are alike")
