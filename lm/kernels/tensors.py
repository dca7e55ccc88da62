"""What compiled code makes of tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.kernels import compiled


class Best(NamedTuple):
    """The largest numbers of each row, the largest and the first first: (rows, k) each.

    Attributes:
        values: the numbers.
        places: where in their row they are.
        logprobs: their log-probabilities, of the logits before all filters.
    """

    values: Tensor
    places: Tensor
    logprobs: Tensor

    @classmethod
    def to_be_filled(cls, rows: int, k: int) -> Best:
        """Room for them."""
        return cls(torch.empty(rows, k), torch.empty(rows, k, dtype=torch.long), torch.empty(rows, k))


def product(values: Tensor, scales: Tensor, bias: Tensor | None, x: Tensor) -> Tensor | None:
    """The product with weights in 8 bits by `lm.kernels.products`, from the first on: it rounds otherwise than torch.

    Args:
        values: (outputs, inputs) int8.
        scales: (outputs,) float32, of the values.
        bias: (outputs,) float32.
        x: (…, inputs).

    Returns:
        (…, outputs) float32; None where torch is to make it: on other devices, in other types, where gradients are
        wanted, or where nothing was compiled.
    """
    if x.device.type != "cpu" or x.dtype is not torch.float32 or (torch.is_grad_enabled() and x.requires_grad):
        return None
    if not compiled.is_ready():
        return None
    compiled.begin()
    from lm.kernels import products

    rows = x.numel() // x.shape[-1]
    out = np.empty((rows, len(values)), np.float32)
    shift = np.empty(0, np.float32) if bias is None else bias.detach().numpy()
    inputs = x.detach().reshape(rows, -1).contiguous().numpy()
    threads = compiled.threads()
    with compiled.alone(threads):
        products.product(values.numpy(), scales.numpy(), shift, inputs, out, False, threads)
    return torch.from_numpy(out).view(*x.shape[:-1], -1)


def best(logits: Tensor, filtered: Tensor, k: int) -> Best | None:
    """The `k` best filtered logits of each row by `lm.kernels.best`; torch rounds log-probabilities otherwise.

    Args:
        logits: (rows, n), before any filter.
        filtered: (rows, n).
        k: at most n.

    Returns:
        None where torch is to find them: on other devices, in other types, or where nothing was compiled.
    """
    known = all(each.device.type == "cpu" and each.dtype is torch.float32 for each in (logits, filtered))
    if not known or not compiled.is_ready():
        return None
    compiled.begin()
    from lm.kernels import best

    found = Best.to_be_filled(len(logits), k)
    best.best(*(each.contiguous().numpy() for each in (logits, filtered, *found)))
    return found
