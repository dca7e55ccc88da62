"""Rotary positions in config.json: base, rotary fraction and scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.model import ModelConfig
from lm.errors import InputError
from lm.interop.hugging_face.family_schema import Rotary

_CONTEXT = "original_max_position_embeddings"
_NUMBERS: Mapping[str, Mapping[str, str]] = {
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


def to_json(config: ModelConfig, rotary: Rotary) -> dict[str, Any]:
    """Return the config.json keys of rotary positions."""
    keys: dict[str, Any] = {rotary.base: config.rope_base}
    if rotary.default_share != 1 or config.rotary_share != 1:
        keys[rotary.share] = config.rotary_share
    if config.rope_scaling != "none":
        scaled = {theirs: getattr(config, f"rope_{name}") for theirs, name in _NUMBERS[config.rope_scaling].items()}
        keys["rope_scaling"] = {"rope_type": config.rope_scaling, **scaled}
    return keys


def from_json(values: Mapping[str, Any], rotary: Rotary, *, context_length: int, path: Path) -> dict[str, Any]:
    """Return our fields of rotary positions, from keys of transformers 4 or 5.

    Raises:
        InputError: it is not supported.
    """
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise InputError(f"{path}: rope_scaling must be names with values")
    share = values.get(rotary.share, values.get("partial_rotary_factor", rotary.default_share))
    fields = {
        "rope_base": scaling.get("rope_theta", values.get(rotary.base, values.get("rope_theta", 10_000.0))),
        "rotary_share": scaling.get("partial_rotary_factor", share),
    }
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return fields
    if not isinstance(kind, str) or kind not in _NUMBERS:
        raise InputError(f"{path}: rope_type {kind!r} is not one of default, {', '.join(_NUMBERS)}")
    if scaling.get("truncate", True) is not True:
        raise InputError(f"{path}: truncate {scaling['truncate']!r} is of a model that lm does not have")
    given = {theirs: scaling.get(theirs) for theirs in (*_NUMBERS[kind], *_OF_YARN)}
    if (above := values.get(_CONTEXT)) is not None and _CONTEXT in given:
        given[_CONTEXT] = above  # which transformers prefers
    wrong = next((name for name, value in given.items() if not _is_number(value)), None)
    if wrong or given["factor"] is None:
        raise InputError(f"{path}: rope_scaling {kind} needs a number as {wrong or 'factor'}")
    return {**fields, "rope_scaling": kind, **_read_scaling(given, kind, context_length)}


def _is_number(value: Any) -> bool:  # noqa: ANN401 (whatever is there)
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12)


def _read_scaling(given: Mapping[str, Any], kind: str, context_length: int) -> dict[str, Any]:
    found = {f"rope_{ours}": given[theirs] for theirs, ours in _NUMBERS[kind].items()}
    if "rope_context" in found:
        found["rope_context"] = found["rope_context"] or context_length
    if kind == "yarn" and found["rope_temperature"] is None and all(given[name] for name in _OF_YARN):
        of_keys, of_all = (1 + 0.1 * given[name] * math.log(max(1, given["factor"])) for name in _OF_YARN)
        found["rope_temperature"] = of_keys / of_all
    return found
