"""The position schemes, one class each, and the input embedding.

An absolute scheme returns vectors that are added to the embeddings: it is called with the first position and the number
of positions. A relative scheme belongs to a stack: it is called with attention inputs and adds a bias, a rotation or
relative embeddings to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention import AttentionInputs, RelativeEmbeddings
from lm.model.layers import Dropout, TokenEmbedding, build_norm

T5_BUCKETS = 32
"""Distance buckets; an encoder has half of them for each direction."""


def sinusoidal_table(length: int, d_model: int, *, interleaved: bool) -> Tensor:
    """Return `sinusoidal_encoding` of the positions 0 … length - 1: (length, d_model) float32."""
    return sinusoidal_encoding(torch.arange(length, dtype=torch.float64), d_model, interleaved=interleaved).float()


def sinusoidal_encoding(positions: Tensor, d_model: int, *, interleaved: bool) -> Tensor:
    """Encode positions as sines and cosines of geometrically growing wavelength.

    Args:
        positions: (…,) of a floating-point dtype, which the result has too.
        d_model: width.
        interleaved: sine and cosine alternate, as in the paper; else all sines come first, as in Marian.

    Returns:
        (…, d_model).

    Source: Vaswani et al. 2017, section 3.5.
    """
    exponents = torch.arange(0, d_model, 2, dtype=positions.dtype, device=positions.device) / d_model
    angles = positions[..., None] / 10_000.0**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1 if interleaved else -2).flatten(-2)[..., :d_model]


class PositionTable(nn.Module):
    """Values by position, computed for twice as many positions as asked for.

    They are neither parameters nor buffers: they are not saved, and stay float32 when the model is cast.
    """

    def __init__(self, compute: Callable[[int], Tensor]) -> None:
        super().__init__()
        self._compute = compute
        self._values: Tensor | None = None

    def rows(self, start: int, length: int, device: torch.device) -> Tensor:
        """Return the values of positions start … start + length - 1."""
        values = self._values  # other threads may replace it
        if values is None or values.device != device or start + length > len(values):
            values = self.fill(2 * (start + length), device)
        return values[start : start + length]

    def fill(self, length: int, device: torch.device) -> Tensor:
        with torch.inference_mode(False):  # the values outlive an evaluation, and training uses them
            values = self._values = self._compute(length).to(device)
        return values


class LearnedPositions(nn.Module):
    """A learned vector per position of the context."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight, self.std = nn.Parameter(torch.empty(config.context_length, config.d_model)), config.init_std

    def initialise(self) -> None:
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, start: int, length: int, _device: torch.device) -> Tensor:
        """(length, d_model) to be added to the embeddings; UsageError beyond the context."""
        if start + length > len(self.weight):
            raise UsageError(
                f"learned positions end at {len(self.weight)}, but the sequence has {start + length} tokens",
            )
        return self.weight[start : start + length]


class SinusoidalPositions(nn.Module):
    """Sinusoidal vectors, which extend beyond the training length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        is_interleaved = config.positions == "sinusoidal"
        self.table = PositionTable(partial(sinusoidal_table, d_model=config.d_model, interleaved=is_interleaved))

    def forward(self, start: int, length: int, device: torch.device) -> Tensor:
        """(length, d_model) to be added to the embeddings."""
        return self.table.rows(start, length, device)


@dataclass  # not frozen: torch.compile of 2.11 finds no fields in a frozen one
class Rotation:
    """Rotates pairs of features (i, i + rotary_dim/2) by an angle proportional to the position.

    Attributes:
        cos: (length, rotary_dim), both halves alike; (batch, 1, length, rotary_dim) if rows differ in their positions.
            Features beyond rotary_dim stay as they are.
        sin: like `cos`, but the first half negative.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate (batch, heads, length, head).

        Source: Su et al. 2021, with features paired as in GPT-NeoX and Llama.
        """
        turned = self.cos.shape[-1]
        rotated: Tensor = _ApplyRotation.apply(x[..., :turned], self.cos.to(x.dtype), self.sin.to(x.dtype))  # type: ignore[no-untyped-call]
        return rotated if turned == x.shape[-1] else torch.cat((rotated, x[..., turned:]), dim=-1)


class _ApplyRotation(torch.autograd.Function):
    """Applies a rotation; the gradient is rotated back in three passes, where autograd would take seven."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _apply_rotation(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _apply_rotation(gradient, cos, -sin), None, None


def _apply_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


def rotary_table(length: int, frequencies: Tensor, *, scale: float = 1.0) -> Tensor:
    """Compute the cosines and sines of rotary positions, as in `Rotation`.

    Args:
        frequencies: (rotary_dim/2,) float64, radians per position.
        scale: factor of cosines and sines.

    Returns:
        (length, 2, rotary_dim) float32; features i and i + rotary_dim/2 rotate by position · frequencies[i].

    Source: Su et al. 2021, section 3.2.
    """
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    sin = torch.cat((-angles.sin(), angles.sin()), dim=1)
    return torch.stack((angles.cos().repeat(1, 2), sin), dim=1).mul_(scale).float()


class RotaryPositions(nn.Module):
    """Rotary positions for queries and keys, which extend beyond the training length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        scale = config.rope_temperature or 1.0
        self.table = PositionTable(lambda length: rotary_table(length, rotary_frequencies(config), scale=scale))

    def forward(self, inputs: AttentionInputs, length: int, device: torch.device) -> AttentionInputs:
        """Add the rotation of `length` tokens to the attention inputs."""
        if inputs.query_positions is not None:
            table = self.table.rows(0, inputs.start + length, device)[inputs.query_positions][:, None]
        else:
            table = self.table.rows(inputs.start, length, device)
        return replace(inputs, rotation=Rotation(*table.unbind(-2)))


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Return the rotary frequencies, in radians per position.

    Returns:
        (rotary_dim/2,) float64: base^(-2i / rotary_dim), scaled down as `rope_scaling` says.

    Source: Su et al. 2021, section 3.2.
    """
    plain = unscaled_rotary_frequencies(config)
    if config.rope_scaling == "none":
        return plain
    scaled = plain / config.rope_factor
    if config.rope_scaling == "linear":
        return scaled
    weights = _llama3_weights(plain, config) if config.rope_scaling == "llama3" else _yarn_weights(config)
    return torch.lerp(scaled, plain, weights)


def unscaled_rotary_frequencies(config: ModelConfig) -> Tensor:
    """Return `rotary_frequencies` without `rope_scaling`."""
    return config.rope_base ** (-torch.arange(0, config.rotary_dim, 2, dtype=torch.float64) / config.rotary_dim)


def _llama3_weights(plain: Tensor, config: ModelConfig) -> Tensor:
    """The weight of each unscaled frequency: 0 for low, 1 for high ones, linear in the number of turns between.

    Source: Grattafiori et al. 2024 (Llama 3), as published with the weights of version 3.1.
    """
    turns = config.rope_context * plain / (2 * math.pi)
    return ((turns - config.rope_slow) / (config.rope_fast - config.rope_slow)).clamp(0, 1)


def _yarn_weights(config: ModelConfig) -> Tensor:
    """As `_llama3_weights`, but linear in the index of the frequency, and so in the logarithm of its turns.

    Source: Peng et al. 2023 (YaRN), section 3.2, with the ends of the ramp rounded outward as in its program.
    """

    def number(turns: float) -> float:
        ratio = config.rope_context / (2 * math.pi * turns)
        return config.rotary_dim * math.log(ratio) / (2 * math.log(config.rope_base))

    first = max(0, math.floor(number(config.rope_fast)))
    last = min(config.rotary_dim - 1, math.ceil(number(config.rope_slow)))
    numbers = torch.arange(config.rotary_dim // 2, dtype=torch.float64)
    return 1 - ((numbers - first) / ((last - first) or 0.001)).clamp(0, 1)


class DistanceBias(nn.Module):
    """Biases of the scores that depend on distances, by `bias`."""

    bias: Callable[[Tensor], Tensor]

    def forward(self, inputs: AttentionInputs, length: int, device: torch.device) -> AttentionInputs:
        """Add the biases of `length` tokens to the attention inputs."""
        return replace(inputs, mask=inputs.mask.with_bias(self.bias(inputs.compute_distances(length, device))))


class ALiBi(DistanceBias):
    """A bias of the scores that decreases linearly with distance, at a slope per head; extends beyond the context.

    Source: Press et al. 2022 (ALiBi).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.n_heads

    def bias(self, distances: Tensor) -> Tensor:
        """(batch or 1, queries, keys) distances -> (batch or 1, heads, queries, keys)."""
        slopes = torch.tensor(alibi_slopes(self.heads), device=distances.device)[:, None, None]
        return -(slopes * distances[:, None].abs())


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes: powers of 2^(-8/heads); between powers of two, every other slope of the next one.

    Source: Press et al. 2022, section 3 and their code.
    """
    power = 1 << (heads.bit_length() - 1)
    base = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return base if power == heads else base + alibi_slopes(2 * power)[::2][: heads - power]


class T5Bias(DistanceBias):
    """A learned bias of the scores per head and distance bucket, shared by all layers of a stack.

    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    def __init__(self, config: ModelConfig, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal, self.max_distance = is_causal, config.max_distance
        self.biases, self.std = nn.Parameter(torch.empty(T5_BUCKETS, config.n_heads)), config.init_std

    def initialise(self) -> None:
        nn.init.normal_(self.biases, std=self.std)

    def bias(self, distances: Tensor) -> Tensor:
        """(batch or 1, queries, keys) distances -> (batch or 1, heads, queries, keys)."""
        buckets = t5_buckets(distances, is_causal=self.is_causal, max_distance=self.max_distance)
        return F.embedding(buckets, self.biases).movedim(-1, 1).contiguous()


def t5_buckets(distances: Tensor, *, is_causal: bool, max_distance: int) -> Tensor:
    """Return the bucket of each distance, key position minus query position.

    Half of the buckets of a direction have one distance each, the others grow logarithmically up to `max_distance`; the
    last holds all greater distances. A causal stack has one direction.

    Source: Raffel et al. 2020 (T5), section 2.1 and their code.
    """
    n_buckets = T5_BUCKETS if is_causal else T5_BUCKETS // 2
    single = n_buckets // 2
    distance = (-distances).clamp(min=0) if is_causal else distances.abs()
    ratio = (distance.clamp(min=single).float() / single).log() / math.log(max_distance / single)
    logarithmic = (single + (ratio * (n_buckets - single)).long()).clamp(max=n_buckets - 1)
    buckets = torch.where(distance < single, distance, logarithmic)
    return buckets if is_causal else buckets + n_buckets * (distances > 0)


class RelativeEmbeddingTables(nn.Module):
    """Learned embeddings for keys and values by clipped distance, for each layer and head.

    Source: Shaw et al. 2018, sections 3.1 and 3.2.
    """

    def __init__(self, config: ModelConfig, n_layers: int, *, before: int, after: int) -> None:
        """Build tables for `n_layers` layers, for distances from -before to after."""
        super().__init__()
        self.before, self.after, self.std = before, after, config.init_std
        shape = (n_layers, config.n_kv_heads, before + 1 + after, config.d_head)
        self.keys, self.values = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))

    def initialise(self) -> None:
        nn.init.normal_(self.keys, std=self.std)
        nn.init.normal_(self.values, std=self.std)

    def forward(self, inputs: AttentionInputs, length: int, device: torch.device) -> AttentionInputs:
        """Add the embeddings of `length` tokens to the attention inputs."""
        return self.add_to(inputs, inputs.compute_distances(length, device))

    def add_to(self, inputs: AttentionInputs, distances: Tensor) -> AttentionInputs:
        """Add the embeddings of each layer to the inputs, given (batch or 1, queries, keys) distances."""
        rows = distances[:, None].clamp(-self.before, self.after) + self.before
        layers = inputs.relative_embeddings or [()] * len(self.keys)
        added = [
            (RelativeEmbeddings(rows, keys, values), *others)
            for others, keys, values in zip(layers, self.keys, self.values, strict=True)
        ]
        return replace(inputs, relative_embeddings=added)


def build_absolute_positions(config: ModelConfig) -> LearnedPositions | SinusoidalPositions | None:
    """Build the position scheme of the input embedding, if it is absolute."""
    if config.positions == "learned":
        return LearnedPositions(config)
    return SinusoidalPositions(config) if config.positions.startswith("sinusoidal") else None


def build_relative_positions(config: ModelConfig, n_layers: int, *, is_causal: bool) -> nn.Module | None:
    """Build the position scheme of a stack, if it is relative."""
    match config.positions:
        case "rotary":
            return RotaryPositions(config)
        case "alibi":
            return ALiBi(config)
        case "t5":
            return T5Bias(config, is_causal=is_causal)
        case "relative":
            after = 0 if is_causal else config.max_distance  # a causal stack needs none for later keys
            return RelativeEmbeddingTables(config, n_layers, before=config.max_distance, after=after)
    return None


class InputEmbedding(nn.Module):
    """Token embedding, scaled if configured, plus absolute positions, with dropout.

    If configured, the sum is normalised, and the embedding of the first token type added before.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; normalised: Devlin et al. 2019 (in their code).
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.types = nn.Parameter(torch.empty(config.token_types, config.d_model)) if config.token_types else None
        self.positions = build_absolute_positions(config)
        self.norm = build_norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.std = config.init_std

    def initialise(self) -> None:
        """Draw from a normal distribution; token embeddings that are scaled by √d_model have a std of 1/√d_model."""
        if self.types is not None:
            nn.init.normal_(self.types, std=self.std)
        nn.init.normal_(self.tokens.weight, std=self.std if self.scale == 1.0 else 1 / self.scale)

    def forward(
        self, tokens: Tensor, inputs: AttentionInputs, *, combine: Callable[[Tensor | None], Tensor] | None = None
    ) -> Tensor:
        """Embed (batch, length) IDs as (batch, length, d_model).

        Args:
            inputs: with the positions of the tokens.
            combine: maps the position vectors, if any, to (batch, length, d_model) vectors to add instead.
        """
        x = self.tokens(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.types is not None:
            x = x + self.types[0].to(x.dtype)
        vectors, length, device = None, tokens.shape[1], tokens.device
        if self.positions is not None and inputs.query_positions is not None:
            vectors = self.positions(0, inputs.start + length, device)[inputs.query_positions]
        elif self.positions is not None:
            vectors = self.positions(inputs.start, length, device)
        if combine is not None:
            vectors = combine(vectors)
        if vectors is not None:
            x = x + vectors.to(x.dtype)
        return self.dropout(x if self.norm is None else self.norm(x))
