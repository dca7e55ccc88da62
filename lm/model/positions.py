"""The position schemes, one class each, and the input embedding.

An absolute scheme returns vectors that are added to the embeddings: it is called with the first position and the number
of positions. A relative scheme belongs to a stack: it is called with attention inputs and adds a bias, a rotation or
relative embeddings to them. `ABSOLUTE_SCHEMES` and `RELATIVE_SCHEMES` list the schemes by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.model.attention_inputs import AttentionInputs, RelativeEmbeddings
from lm.model.layers import Dropout, TokenEmbedding, build_norm
from lm.model.module import Module, memoised

T5_BUCKETS = 32
"""Distance buckets; an encoder has half of them for each direction."""
_PRECOMPUTED_POSITIONS = 8192
"""Positions of a long context that are computed in advance; more would take memory that few texts use."""


def sinusoidal_table(length: int, d_model: int, *, interleaved: bool) -> Tensor:
    """Return `sinusoidal_encoding` of the positions 0 … length - 1: (length, d_model) float32."""
    return sinusoidal_encoding(torch.arange(length, dtype=torch.float64), d_model, interleaved=interleaved).float()


def sinusoidal_encoding(positions: Tensor, d_model: int, *, interleaved: bool) -> Tensor:
    """Encode positions as sines and cosines of geometrically growing wavelength.

    Args:
        positions: (…,) of a floating-point dtype, which the result has too.
        d_model: width, even.
        interleaved: sine and cosine alternate, as in the paper; else all sines come first, as in Marian.

    Returns:
        (…, d_model).

    Source: Vaswani et al. 2017, section 3.5.
    """
    exponents = torch.arange(0, d_model, 2, dtype=positions.dtype, device=positions.device) / d_model
    angles = positions[..., None] / 10_000.0**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1 if interleaved else -2).flatten(-2)


class PositionTable(nn.Module):
    """Values by position, computed once, and again for a longer sequence.

    They are neither parameters nor buffers: they are not saved, and stay float32 when the model is cast.
    """

    def __init__(self, compute: Callable[[int], Tensor], length: int) -> None:
        super().__init__()
        self._compute, self._length = compute, length
        self._values: Tensor | None = None

    def rows(self, start: int, length: int, device: torch.device) -> Tensor:
        """Return the values of positions start … start + length - 1."""
        values = self._values  # other threads may replace it
        if values is None or values.device != device or start + length > len(values):
            values = self.fill(device, at_least=start + length)
        return values[start : start + length]

    def fill(self, device: torch.device, *, at_least: int | None = None) -> Tensor:
        """Compute the values of the whole context, or of `at_least` positions of a long context."""
        if at_least is None:
            number = self._length
        else:
            self._length = max(self._length, at_least)
            number = min(self._length, max(_PRECOMPUTED_POSITIONS, 2 * at_least))
        with torch.inference_mode(False):  # the values outlive an evaluation, and training uses them
            values = self._values = self._compute(number).to(device)
        return values


class LearnedPositions(Module):
    """A learned vector per position of the context."""

    part = "positions"

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

    def __init__(self, config: ModelConfig, *, interleaved: bool) -> None:
        super().__init__()
        compute = partial(sinusoidal_table, d_model=config.d_model, interleaved=interleaved)
        self.table = PositionTable(compute, config.context_length)

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
        if turned == x.shape[-1]:
            return self._rotate(x)
        return torch.cat((self._rotate(x[..., :turned]), x[..., turned:]), dim=-1)

    def _rotate(self, x: Tensor) -> Tensor:
        return _ApplyRotation.apply(x, self.cos.to(x.dtype), self.sin.to(x.dtype))  # type: ignore[no-untyped-call]

    def strided(self, step: int, *, first: int) -> Rotation:
        """Return the rotation of every `step`-th position, starting with `first`."""
        return Rotation(self.cos[first::step], self.sin[first::step])


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
        self.table = PositionTable(partial(_rotary_table_of, config=config), config.context_length)

    def forward(self, inputs: AttentionInputs, length: int, device: torch.device) -> AttentionInputs:
        """Add the rotation of `length` tokens to the attention inputs."""
        if inputs.query_positions is not None:
            table = self.table.rows(0, inputs.end, device)[inputs.query_positions][:, None]
        else:
            table = self.table.rows(inputs.start, length, device)
        return replace(inputs, rotation=Rotation(*table.unbind(-2)))


def _rotary_table_of(length: int, config: ModelConfig) -> Tensor:
    return rotary_table(
        length, rotary_frequencies(config), scale=1.0 if config.rope_temperature is None else config.rope_temperature
    )


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


class _DistanceScheme(Module):
    """A relative scheme by distance; sparse attention, which never forms all pairs, asks it for those that it needs."""

    part = "positions"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_on_demand = config.attention != "full"

    def forward(self, inputs: AttentionInputs, length: int, device: torch.device) -> AttentionInputs:
        """Add the biases of `length` tokens to the attention inputs."""
        if self.is_on_demand:
            return replace(inputs, distance_bias=self)
        return self.add_to(inputs, inputs.compute_distances(length, device))

    def add_to(self, inputs: AttentionInputs, distances: Tensor) -> AttentionInputs:
        """Add the biases of (batch or 1, queries, keys) distances to the attention inputs."""
        return replace(inputs, mask=inputs.mask.with_bias(self.score_bias(distances)))

    def compute_bias(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeEmbeddings | None]:  # noqa: ARG002
        """See `DistanceBias`."""
        return self.score_bias(distances), None

    def score_bias(self, distances: Tensor) -> Tensor:
        """Return (batch or 1, heads, queries, keys) biases of the scores."""
        raise NotImplementedError


class ALiBi(_DistanceScheme):
    """A bias of the scores that decreases linearly with distance, at a slope per head; extends beyond the context.

    Source: Press et al. 2022 (ALiBi).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.heads = config.n_heads

    def score_bias(self, distances: Tensor) -> Tensor:
        return -(_slopes_tensor(self.heads, distances.device)[:, None, None] * distances[:, None].abs())


@memoised
def _slopes_tensor(heads: int, device: torch.device) -> Tensor:
    return torch.tensor(alibi_slopes(heads), device=device)


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes: powers of 2^(-8/heads); between powers of two, every other slope of the next one.

    Source: Press et al. 2022, section 3 and their code.
    """
    power = 1 << (heads.bit_length() - 1)
    base = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return base if power == heads else base + alibi_slopes(2 * power)[::2][: heads - power]


class T5Bias(_DistanceScheme):
    """A learned bias of the scores per head and distance bucket, shared by all layers of a stack.

    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    def __init__(self, config: ModelConfig, _n_layers: int, is_causal: bool) -> None:
        super().__init__(config)
        self.is_causal, self.max_distance = is_causal, config.max_distance
        self.biases, self.std = nn.Parameter(torch.empty(T5_BUCKETS, config.n_heads)), config.init_std

    def initialise(self) -> None:
        nn.init.normal_(self.biases, std=self.std)

    def score_bias(self, distances: Tensor) -> Tensor:
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


class RelativeEmbeddingTables(_DistanceScheme):
    """Learned embeddings for keys and values by clipped distance, for each layer and head.

    Source: Shaw et al. 2018, sections 3.1 and 3.2.
    """

    def __init__(self, config: ModelConfig, n_layers: int, *, before: int, after: int) -> None:
        """Build tables for `n_layers` layers, for distances from -before to after."""
        super().__init__(config)
        self.before, self.after = before, after
        shape = (n_layers, config.n_kv_heads, before + 1 + after, config.d_head)
        self.keys, self.values = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.std, self.uses = config.init_std, config.n_heads // config.n_kv_heads  # a head multiplies by all

    def initialise(self) -> None:
        nn.init.normal_(self.keys, std=self.std)
        nn.init.normal_(self.values, std=self.std)

    def add_to(self, inputs: AttentionInputs, distances: Tensor) -> AttentionInputs:
        """Add the embeddings of each layer to the inputs, given (batch or 1, queries, keys) distances."""
        rows = self._rows(distances)
        layers = zip(self.keys, self.values, strict=True)
        return inputs.with_relative_embeddings([RelativeEmbeddings(rows, keys, values) for keys, values in layers])

    def compute_bias(self, query: Tensor, distances: Tensor, *, layer: int) -> tuple[Tensor, RelativeEmbeddings]:
        tables = RelativeEmbeddings(self._rows(distances), self.keys[layer], self.values[layer])
        return tables.scores(query), tables

    def _rows(self, distances: Tensor) -> Tensor:
        return distances[:, None].clamp(-self.before, self.after) + self.before


class RelativePositions(RelativeEmbeddingTables):
    """Embeddings for keys and values by distance in the sequence; a causal stack has none for later keys."""

    def __init__(self, config: ModelConfig, n_layers: int, is_causal: bool) -> None:
        super().__init__(config, n_layers, before=config.max_distance, after=0 if is_causal else config.max_distance)


ABSOLUTE_SCHEMES: Mapping[str, Callable[[ModelConfig], nn.Module]] = {
    "learned": LearnedPositions,
    "sinusoidal": partial(SinusoidalPositions, interleaved=True),
    "sinusoidal-half": partial(SinusoidalPositions, interleaved=False),
}
"""Schemes of the input embedding, by name."""
RELATIVE_SCHEMES: Mapping[str, Callable[[ModelConfig, int, bool], nn.Module]] = {
    "rotary": lambda config, *_: RotaryPositions(config),
    "alibi": lambda config, *_: ALiBi(config),
    "relative": RelativePositions,
    "t5": T5Bias,
}
"""Schemes of a stack, by name: called with the config, the number of layers, and whether the stack is causal."""


def build_relative_positions(config: ModelConfig, n_layers: int, *, is_causal: bool) -> nn.Module | None:
    """Build the position scheme of a stack, if it is relative."""
    scheme = RELATIVE_SCHEMES.get(config.positions)
    return None if scheme is None else scheme(config, n_layers, is_causal)


class InputEmbedding(Module):
    """Token embedding, scaled if configured, plus absolute positions, with dropout.

    If configured, the sum is normalised, and the embedding of the first token type added before.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; normalised: Devlin et al. 2019 (in their code).
    """

    part = "token embeddings"
    parts: ClassVar = {"types": "token types"}
    uses = 0.0

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.types = nn.Parameter(torch.empty(config.token_types, config.d_model)) if config.token_types else None
        scheme = ABSOLUTE_SCHEMES.get(config.positions)
        self.positions: nn.Module | None = None if scheme is None else scheme(config)
        self.norm = build_norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.std = config.init_std
        self.token_embedding_std = config.d_model**-0.5 if config.scale_embeddings else self.std

    def initialise(self) -> None:
        """Draw from a normal distribution; token embeddings that are scaled by √d_model have a std of 1/√d_model."""
        if self.types is not None:
            nn.init.normal_(self.types, std=self.std)
        nn.init.normal_(self.tokens.weight, std=self.token_embedding_std)

    def forward(
        self,
        tokens: Tensor,
        *,
        start: int = 0,
        positions: Tensor | None = None,
        end: int = 0,
        combine: Callable[[Tensor | None], Tensor] | None = None,
    ) -> Tensor:
        """Embed (batch, length) IDs as (batch, length, d_model).

        Args:
            start: the position of the first one.
            positions: (batch or 1, length) positions, if they are not consecutive.
            end: an upper bound of `positions`.
            combine: maps the position vectors, if any, to (batch, length, d_model) vectors to add instead.
        """
        x = self.tokens(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.types is not None:
            x = x + self.types[0].to(x.dtype)
        vectors = None
        if self.positions is not None and positions is not None:
            vectors = self.positions(0, end, tokens.device)[positions]
        elif self.positions is not None:
            vectors = self.positions(start, tokens.shape[1], tokens.device)
        if combine is not None:
            vectors = combine(vectors)
        if vectors is not None:
            x = x + vectors.to(x.dtype)
        return self.dropout(x if self.norm is None else self.norm(x))
