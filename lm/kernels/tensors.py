"""Products of tensors in compiled code."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lm.kernels import compiled


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
    products.product(values.numpy(), scales.numpy(), shift, inputs, out, False, compiled.threads())
    return torch.from_numpy(out).view(*x.shape[:-1], -1)
