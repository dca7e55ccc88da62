"""The feed-forward layer of a block, and its activations."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from lm.config.model import ModelConfig
from lm.model.linear import Linear


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    """Source: So et al. 2021 (Primer)."""
    return F.relu(x).square()


def _swiglu(x: Tensor) -> Tensor:
    """(…, 2·width): a gate and what it lets through -> (…, width). Source: Shazeer 2020."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": _gelu_tanh,
    "relu2": _relu_squared,
    "silu": F.silu,
    "swiglu": _swiglu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, at each position alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.feed_forward_width
        self.projected = [width, width] if config.activation == "swiglu" else [width]
        self.up = Linear(config.d_model, sum(self.projected), bias=config.bias)
        self.down = Linear(width, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        return self.down(self.activation(self.up(x)))
