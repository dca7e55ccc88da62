"""The frequencies of rotary positions, and how they are slowed down for a context longer than the one trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config.model import ModelConfig


@dataclass(frozen=True)
class Scaling:
    """The numbers of `rope_scaling`, as set or by default.

    Attributes:
        factor: by how much frequencies are slowed down.
        context: that was trained on before.
        slow: turns in that context up to which a frequency is slowed down in full.
        fast: turns from which it stays as it is.
        temperature: factor of rotated queries and keys, which sharpens attention in yarn (Peng et al. 2023, section
            3.4).
    """

    factor: float
    context: int
    slow: float
    fast: float
    temperature: float

    @classmethod
    def of(cls, config: ModelConfig) -> Scaling:
        """The numbers of a model's config."""
        factor = config.rope_factor or 1.0
        temperature = 1 + 0.1 * math.log(factor) if config.rope_scaling == "yarn" else 1.0
        return cls(
            factor=factor,
            context=config.rope_context or config.context_length,
            slow=config.rope_slow or 1.0,
            fast=config.rope_fast or (4.0 if config.rope_scaling == "llama3" else 32.0),
            temperature=temperature if config.rope_temperature is None else config.rope_temperature,
        )


def frequencies(config: ModelConfig) -> Tensor:
    """How far each pair of features turns from one position to the next.

    Returns:
        (turned/2,) float64 radians: base^(-2i / turned), slowed down as `rope_scaling` says.

    Source: Su et al. 2021, section 3.2.
    """
    plain = unscaled(config)
    if config.rope_scaling == "none":
        return plain
    scaling = Scaling.of(config)
    slowed = plain / scaling.factor
    if config.rope_scaling == "linear":
        return slowed
    kept = _by_turns(plain, scaling) if config.rope_scaling == "llama3" else _by_number(config, scaling)
    return torch.lerp(slowed, plain, kept)


def unscaled(config: ModelConfig) -> Tensor:
    """As `frequencies`, whatever `rope_scaling` says."""
    return config.rope_base ** (-torch.arange(0, config.rotated, 2, dtype=torch.float64) / config.rotated)


def _by_turns(plain: Tensor, scaling: Scaling) -> Tensor:
    """The share of each frequency that is kept: none of slow ones, all of fast ones, a ramp between in their turns.

    Source: Grattafiori et al. 2024 (Llama 3), as published with the weights of version 3.1.
    """
    turns = scaling.context * plain / (2 * math.pi)
    return ((turns - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)


def _by_number(config: ModelConfig, scaling: Scaling) -> Tensor:
    """As `_by_turns`, with the ramp in the number of the frequency, which goes with the logarithm of its turns.

    Source: Peng et al. 2023 (YaRN), section 3.2, with the ends of the ramp rounded outward as in its program.
    """

    def number(turns: float) -> float:
        ratio = scaling.context / (2 * math.pi * turns)
        return config.rotated * math.log(ratio) / (2 * math.log(config.rope_base))

    first = max(0, math.floor(number(scaling.fast)))
    last = min(config.rotated - 1, math.ceil(number(scaling.slow)))
    numbers = torch.arange(config.rotated // 2, dtype=torch.float64)
    return 1 - ((numbers - first) / ((last - first) or 0.001)).clamp(0, 1)
