"""Position encodings and attention biases, for models trained with lm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache

from .configuration_lm import LMConfig

BUCKETS = 32
"""Number of T5's relative position buckets."""


@dataclass
class LMAttentionInputs:
    """Inputs shared by all attention layers: bias, rotation, cache, real tokens, position tables, first values."""

    bias: Tensor
    rotation: Tensor | None = None
    rows: Tensor | None = None
    tables: tuple[Tensor, Tensor] | None = None
    cache: Cache | None = None
    first_values: Tensor | None = None
    real: Tensor | None = None

    def mix(self, value: Tensor, weights: Tensor) -> Tensor:
        """Mix values with those of the first layer (value residual, Zhou et al. 2024)."""
        if self.first_values is None:
            self.first_values = value
        return weights[0] * self.first_values + weights[1] * value

    def offset(self, key: Tensor) -> Tensor:
        """Return the keys of the token before each, zero where there is none (key offset, modded-nanogpt 2025)."""
        if self.real is not None:
            key = key * self.real[:, None, :, None].to(key.dtype)
        return F.pad(key[:, :, :-1], (0, 0, 1, 0))


def compute_angles(config: LMConfig, positions: Tensor) -> Tensor:
    """Return the angles of (…,) positions, (…, frequencies), in float64 where the device has it."""
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    return positions[..., None] * torch.tensor(config.frequencies, dtype=dtype, device=positions.device)


def compute_rotation(config: LMConfig, positions: Tensor) -> Tensor:
    """Return (2, batch or 1, 1, length, rotary) cosines and sines of positions; sines have a negative first half."""
    angles = compute_angles(config, positions[:, None])
    cos, sin = angles.cos().repeat(1, 1, 1, 2), torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return (torch.stack((cos, sin)) * (config.rope_temperature or 1.0)).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Apply rotary embeddings to the first features of (batch, heads, length, head); pairs are half of them apart."""
    cos, sin = rotation.to(x.dtype)
    first, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), dim=-1)
    return torch.cat((first * cos + first.roll(cos.shape[-1] // 2, -1) * sin, rest), dim=-1)


def sinusoidal_positions(config: LMConfig, positions: Tensor) -> Tensor:
    """Return (batch or 1, length, d_model) sinusoidal encodings (Vaswani et al. 2017)."""
    angles, side_by_side = compute_angles(config, positions), config.positions == "sinusoidal"  # else all sines first
    return torch.stack((angles.sin(), angles.cos()), dim=-1 if side_by_side else -2).flatten(-2)


class LMRelativePositions(nn.Module):
    """Learned or fixed relative positions: attention biases, or keys and values."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config, self.before = config, config.max_distance or 0
        self.after = 0 if config.objective == "causal" else self.before
        if config.positions == "t5":
            self.biases = nn.Parameter(torch.zeros(BUCKETS, config.n_heads))
        if config.positions == "relative":
            shape = (config.n_layers, config.n_kv_heads, self.before + 1 + self.after, config.d_head)
            self.keys, self.values = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor, positions: Tensor, real: Tensor | None, cache: Cache | None) -> LMAttentionInputs:
        """Return the attention inputs for (batch, queries, d_model) at the positions after the cache."""
        config, earlier = self.config, 0 if cache is None else cache.get_seq_length()
        keys = torch.arange(earlier + x.shape[1], device=x.device)
        distances = keys - keys[earlier:, None]
        rows = distances.clamp(-self.before, self.after) + self.before
        bias = x.new_zeros(())
        if config.positions == "alibi":
            bias = -torch.tensor(config.slopes, device=x.device)[:, None, None] * distances.abs()  # Press et al. 2022
        if config.positions == "t5":
            bias = self.biases[torch.tensor(config.buckets, device=x.device)[rows]].movedim(-1, 0)  # Raffel et al. 2020
        is_causal = config.objective == "causal"
        window = config.attention_window if config.attention == "window" else len(keys)
        allowed = ((distances >= is_causal - window) & (distances <= window * (not is_causal)))[None, None]
        if real is not None:
            allowed = allowed & real.bool()[:, None, None]
        seen = LMAttentionInputs(
            torch.where(allowed, bias.to(x.dtype), torch.finfo(x.dtype).min), cache=cache, real=real
        )
        if config.positions == "rotary":
            seen.rotation = compute_rotation(config, positions)
        if config.positions == "relative":
            seen.rows, seen.tables = rows, (self.keys, self.values)
        return seen
