"""Position encodings and attention biases, for models trained with lm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache

from .configuration_lm import LMConfig

BUCKETS = 32
"""Number of T5's relative position buckets."""


@dataclass
class LMAttentionInputs:
    """Inputs shared by all attention layers: bias, rotation, cache, position tables, first values."""

    bias: Tensor
    rotation: Tensor | None = None
    rows: Tensor | None = None
    tables: tuple[Tensor, Tensor] | None = None
    cache: Cache | None = None
    first_values: Tensor | None = None

    def mix(self, value: Tensor, weights: Tensor) -> Tensor:
        """Mix values with those of the first layer (value residual, Zhou et al. 2024)."""
        if self.first_values is None:
            self.first_values = value
        return weights[0] * self.first_values + weights[1] * value


def rotary_frequencies(config: LMConfig, device: torch.device) -> Tensor:
    """Return (rotary/2,) angular frequencies in radians per position (Su et al. 2021)."""
    rotary_dim = int(config.d_head * config.rotary_fraction)
    numbers = torch.arange(rotary_dim // 2, dtype=angle_dtype(device), device=device)
    plain = config.rope_base ** (-2 * numbers / rotary_dim)
    if config.rotary_scaling == "none":
        return plain
    kept = torch.zeros_like(plain)
    if config.rotary_scaling == "llama3":
        turns = config.rope_context * plain / (2 * math.pi)
        kept = ((turns - config.rope_slow) / (config.rope_fast - config.rope_slow)).clamp(0, 1)
    if config.rotary_scaling == "yarn":
        ratios = (config.rope_context / (2 * math.pi * turns) for turns in (config.rope_fast, config.rope_slow))
        first, last = (rotary_dim * math.log(ratio) / (2 * math.log(config.rope_base)) for ratio in ratios)
        first, last = max(0, math.floor(first)), min(rotary_dim - 1, math.ceil(last))
        kept = 1 - ((numbers - first) / ((last - first) or 0.001)).clamp(0, 1)
    return torch.lerp(plain / config.rope_factor, plain, kept)


def angle_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which angles are computed."""
    return torch.float32 if device.type == "mps" else torch.float64


def compute_rotation(config: LMConfig, positions: Tensor) -> Tensor:
    """Return (2, batch or 1, 1, length, rotary) cosines and sines of positions; sines have a negative first half."""
    angles = positions[:, None, :, None] * rotary_frequencies(config, positions.device)
    cos, sin = angles.cos().repeat(1, 1, 1, 2), torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return (torch.stack((cos, sin)) * (config.rope_temperature or 1.0)).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Apply rotary embeddings to the first features of (batch, heads, length, head); pairs are half of them apart."""
    cos, sin = rotation.to(x.dtype)
    first, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), dim=-1)
    return torch.cat((first * cos + first.roll(cos.shape[-1] // 2, -1) * sin, rest), dim=-1)


def sinusoidal_positions(config: LMConfig, positions: Tensor) -> Tensor:
    """Return (batch or 1, length, d_model) sinusoidal encodings (Vaswani et al. 2017)."""
    numbers = torch.arange(0, config.d_model, 2, dtype=angle_dtype(positions.device), device=positions.device)
    angles = positions[..., None] / 10_000.0 ** (numbers / config.d_model)
    side_by_side = config.positions == "sinusoidal"  # else all sines come first
    return torch.stack((angles.sin(), angles.cos()), dim=-1 if side_by_side else -2).flatten(-2)


def alibi_slopes(heads: int) -> list[float]:
    """Return ALiBi slopes per head (Press et al. 2022)."""
    power = 1 << (heads.bit_length() - 1)
    whole = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return whole if power == heads else whole + alibi_slopes(2 * power)[::2][: heads - power]


def relative_buckets(distances: Tensor, *, is_causal: bool, max_distance: int) -> Tensor:
    """Return T5 buckets of distances from query to key (Raffel et al. 2020)."""
    buckets_per_direction = BUCKETS if is_causal else BUCKETS // 2
    single = buckets_per_direction // 2
    far = (-distances).clamp(min=0) if is_causal else distances.abs()
    fraction = (far.clamp(min=single).float() / single).log() / math.log(max_distance / single)
    logarithmic = (single + (fraction * (buckets_per_direction - single)).long()).clamp(max=buckets_per_direction - 1)
    bucket = torch.where(far < single, far, logarithmic)
    return bucket if is_causal else bucket + buckets_per_direction * (distances > 0)


class LMRelativePositions(nn.Module):
    """Learned or fixed relative positions: attention biases, or keys and values."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config, self.is_causal = config, config.objective == "causal"
        self.max_distance = config.max_distance or 0
        after = 0 if self.is_causal else self.max_distance
        if config.positions == "t5":
            self.biases = nn.Parameter(torch.zeros(BUCKETS, config.n_heads))
        if config.positions == "relative":
            shape = (config.n_layers, config.n_kv_heads, self.max_distance + 1 + after, config.d_head)
            self.keys, self.values = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor, positions: Tensor, real: Tensor | None, cache: Cache | None) -> LMAttentionInputs:
        """Return the attention inputs for (batch, queries, d_model) at the positions after the cache."""
        earlier = 0 if cache is None else cache.get_seq_length()
        keys = torch.arange(earlier + x.shape[1], device=x.device)
        distances = keys - keys[earlier:, None]
        seen = LMAttentionInputs(self._bias(distances, real, x.dtype), cache=cache)
        if self.config.positions == "rotary":
            seen.rotation = compute_rotation(self.config, positions)
        if self.config.positions == "relative":
            seen.rows = (
                distances[None, None].clamp(-self.max_distance, self.keys.shape[2] - 1 - self.max_distance)
                + self.max_distance
            )
            seen.tables = self.keys, self.values
        return seen

    def _bias(self, distances: Tensor, real: Tensor | None, dtype: torch.dtype) -> Tensor:
        allowed = (distances <= 0 if self.is_causal else torch.ones_like(distances, dtype=torch.bool))[None, None]
        if self.config.attention == "window":
            allowed = allowed & (distances.abs() <= self.config.attention_window - self.is_causal)
        if real is not None:
            allowed = allowed & real.bool()[:, None, None]
        bias = torch.zeros((), dtype=dtype, device=distances.device)
        if self.config.positions == "alibi":
            bias = (
                -torch.tensor(alibi_slopes(self.config.n_heads), device=distances.device)[:, None, None]
                * distances.abs()
            )
        if self.config.positions == "t5":
            buckets = relative_buckets(distances, is_causal=self.is_causal, max_distance=self.max_distance)
            bias = self.biases[buckets].movedim(-1, 0)
        return torch.where(allowed, bias.to(dtype), torch.finfo(dtype).min)
