"""Sliding-window attention in config.json: always on in Mistral, optional in Qwen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lm.config.model import ModelConfig
from lm.errors import InputError

WindowStyle = Literal["never", "by width", "by switch"]
"""How a family configures a sliding window: never, by its width, or by a switch.

By switch, the first `max_window_layers` layers see all nevertheless, and `layer_types` may say the same layer by layer.
"""

_DEFAULT_WIDTH, _DEFAULT_FULL_LAYERS = 4096, 28
_SLIDING, _FULL = "sliding_attention", "full_attention"


def to_json(config: ModelConfig, windowed: WindowStyle) -> dict[str, Any]:
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


def from_json(values: Mapping[str, Any], windowed: WindowStyle, *, n_layers: int, path: Path) -> dict[str, Any]:
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
        raise InputError(f"{path}: layer_types of different kinds are of a model that lm does not have")
    if isinstance(full, int) and (full == 0 or full >= n_layers):
        return full == 0
    raise InputError(f"{path}: max_window_layers {full!r} is of a model that lm does not have: all layers are alike")
