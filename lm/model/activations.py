"""The activations of feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


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
