"""What llama.cpp computes from a file of a gated architecture, written out in float64 after its own sources.

llama.cpp itself agrees with our models too: of 30 that `random_config` draws, with biases, scaled positions and heads
of any size, log-probabilities were at most 4e-6 apart, and 1.2e-3 where it takes GELU from a table in half precision
(v0.5.0, the binaries of node-llama-cpp 3.22.1). transformers' reader of these files leaves out biases and scaling.

Source: llama.cpp, src/models/llama.cpp and qwen*.cpp, and ggml_rope_yarn in ggml.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PAIRS_TOGETHER = ("llama",)
"""Architectures whose features that turn together stand beside each other, and not half a head apart."""
_FAST, _SLOW = 32.0, 1.0


def logits(settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """Return (tokens, vocabulary) float64."""
    name = settings["general.architecture"]
    tensors = {key: value.astype(np.float64) for key, value in tensors.items()}

    def said(key: str, default: Any = None) -> Any:
        return settings.get(f"{name}.{key}", default)

    def linear(layer: str, x: np.ndarray) -> np.ndarray:
        return x @ tensors[f"{layer}.weight"].T + tensors.get(f"{layer}.bias", 0.0)

    def norm(layer: str, x: np.ndarray) -> np.ndarray:
        if f"{layer}.weight" not in tensors:
            return x
        root = np.sqrt((x**2).mean(-1, keepdims=True) + said("attention.layer_norm_rms_epsilon"))
        return x / root * tensors[f"{layer}.weight"]

    length, width = len(tokens), said("attention.key_length")
    cos, sin = _turns(said, tensors.get("rope_freqs.weight"), length)

    def turned(x: np.ndarray) -> np.ndarray:
        """(heads, length, width), of which the first features turn."""
        parts, rest = x[..., : 2 * cos.shape[1]], x[..., 2 * cos.shape[1] :]
        is_together = name in PAIRS_TOGETHER
        a, b = (parts[..., 0::2], parts[..., 1::2]) if is_together else np.split(parts, 2, axis=-1)
        pair = (a * cos - b * sin, a * sin + b * cos)
        found = np.stack(pair, -1).reshape(parts.shape) if is_together else np.concatenate(pair, -1)
        return np.concatenate((found, rest), -1)

    def by_head(x: np.ndarray) -> np.ndarray:
        return x.reshape(length, -1, width).transpose(1, 0, 2)

    x = tensors["token_embd.weight"][list(tokens)]
    future = np.triu(np.full((length, length), -np.inf), 1)
    for index in range(said("block_count")):
        block = f"blk.{index}."
        normed = norm(block + "attn_norm", x)
        query, key, value = (by_head(linear(block + part, normed)) for part in ("attn_q", "attn_k", "attn_v"))
        query, key = turned(norm(block + "attn_q_norm", query)), turned(norm(block + "attn_k_norm", key))
        group = len(query) // len(key)
        key, value = key.repeat(group, 0), value.repeat(group, 0)
        scores = np.exp(query @ key.transpose(0, 2, 1) / math.sqrt(width) + future)
        found = (scores / scores.sum(-1, keepdims=True)) @ value
        x = x + linear(block + "attn_output", found.transpose(1, 0, 2).reshape(length, -1))
        normed = norm(block + "ffn_norm", x)
        gate = linear(block + "ffn_gate", normed)
        x = x + linear(block + "ffn_down", gate / (1 + np.exp(-gate)) * linear(block + "ffn_up", normed))
    head = "output" if "output.weight" in tensors else "token_embd"
    return linear(head, norm("output_norm", x))


def _turns(said: Any, factors: np.ndarray | None, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(length, pairs) cosines and sines."""
    turned, base = said("rope.dimension_count"), said("rope.freq_base")
    factor, is_yarn = said("rope.scaling.factor", 1.0), said("rope.scaling.type") == "yarn"
    frequencies = base ** (-np.arange(0, turned, 2) / turned) / (1.0 if factors is None else factors)
    kept, scale = 0.0, 1.0
    if is_yarn:
        low, high = (
            turned
            * math.log(said("rope.scaling.original_context_length") / (turns * 2 * math.pi))
            / (2 * math.log(base))
            for turns in (_FAST, _SLOW)
        )
        low, high = max(0.0, math.floor(low)), min(turned - 1.0, math.ceil(high))
        kept = 1 - ((np.arange(turned // 2) - low) / max(0.001, high - low)).clip(0, 1)
        scale = said("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(factor))
    angles = np.arange(length)[:, None] * frequencies * ((1 - kept) / factor + kept)
    return scale * np.cos(angles), scale * np.sin(angles)
