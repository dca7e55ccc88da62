"""Products of activations and weights, by the faster of the libraries that torch has for them."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST_PRODUCTS = 1_000_000


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X weightᵀ + bias: (…, inputs) and (outputs, inputs) -> (…, outputs).

    On CPUs that are not Intel's, MKL leaves half of the vector units idle, and oneDNN does not: 160 rows of 160 by
    480 weights in float32, one thread of an AMD EPYC with AVX-512: MKL 101, oneDNN 201 GFLOP/s. They cross at about a
    million multiplications. torch itself takes oneDNN for bfloat16 only.
    """
    if (
        weight.dtype is torch.float32
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.numel() * len(weight) >= _LEAST_PRODUCTS
        and not torch.is_autocast_enabled("cpu")
        and _has_onednn_and_no_intel()
        and not torch.compiler.is_compiling()
    ):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, with `linear` for the product."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """(…, inputs) -> (…, outputs)."""
        return linear(input, self.weight, self.bias)


@cache
def _has_onednn_and_no_intel() -> bool:
    if not torch.backends.mkldnn.is_available() or platform.machine() not in {"x86_64", "AMD64"}:
        return False
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8", errors="replace") if described.is_file() else platform.processor()
    return "AuthenticAMD" in text
