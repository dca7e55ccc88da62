"""Products of activations and weights, by the faster of the libraries that torch has for them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.hardware import one_thread
from lm.model.quantised import Int8Matrix

_LEAST_PRODUCTS = 1_000_000
"""Multiplications from which a product may go to oneDNN."""
_ROWS, _INPUTS, _OUTPUTS, _TRIES = 128, 256, 512, 9
"""The product that both libraries are timed with, and how often."""
_CLEARLY = 1.25
"""How many times as fast oneDNN must be to be taken."""


def linear(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """The product `x` weightᵀ + bias: (…, inputs) and (outputs, inputs) -> (…, outputs).

    torch takes MKL for float32, which on some CPUs leaves half of the vector units idle, as oneDNN does not: 160 rows
    of 160 by 480 weights, one thread of an AMD EPYC with AVX-512: MKL 103, oneDNN 206 GFLOP/s; with AVX2 103 and 111.
    Below a million multiplications neither is ahead by much.
    """
    if isinstance(weight, Int8Matrix):
        return weight.product(x, bias)
    if (
        weight.dtype is torch.float32
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.numel() * len(weight) >= _LEAST_PRODUCTS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _onednn_is_faster()
    ):
        return _by_onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def rows(weight: Tensor | Int8Matrix, outputs: Tensor) -> Tensor:
    """The weights of some outputs, such as the vectors of tokens: (…,) numbers -> (…, inputs)."""
    return weight.rows(outputs) if isinstance(weight, Int8Matrix) else F.embedding(outputs, weight)


class Linear(nn.Linear):
    """torch's linear layer, with `linear` for the product."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…, inputs) -> (…, outputs)."""
        return linear(input, self.weight, self.bias)

    def some(self, x: Tensor, outputs: slice) -> Tensor:
        """(…, inputs) -> (…, some of the outputs)."""
        return linear(x, self.weight[outputs], None if self.bias is None else self.bias[outputs])


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def _onednn_is_faster() -> bool:
    """Whether oneDNN clearly is faster here: both multiply in turns, with one thread, since others may be at work."""
    if not torch.backends.mkldnn.is_available():
        return False
    x, weight = torch.ones(_ROWS, _INPUTS), torch.ones(_OUTPUTS, _INPUTS)
    try:
        with one_thread():
            rounds = [(_seconds(F.linear, x, weight), _seconds(_by_onednn, x, weight)) for _ in range(1 + _TRIES)]
    except (AttributeError, RuntimeError):  # a torch without this operator, or one that does not know the processor
        return False
    return statistics.median(mkl / onednn for mkl, onednn in rounds[1:]) > _CLEARLY


def _seconds(product: Callable[[Tensor, Tensor, None], Tensor], x: Tensor, weight: Tensor) -> float:
    began = time.perf_counter()
    product(x, weight, None)
    return time.perf_counter() - began
