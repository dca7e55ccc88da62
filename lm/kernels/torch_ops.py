"""What compiled code makes of tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.kernels import code_cache


class TopK(NamedTuple):
    """The largest numbers of each row, the largest and the first first: (rows, k) each.

    Attributes:
        values: the numbers.
        indices: where in their row they are.
        logprobs: their log-probabilities, of the logits before all filters.
    """

    values: Tensor
    indices: Tensor
    logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, k: int) -> TopK:
        """Room for them."""
        return cls(torch.empty(rows, k), torch.empty(rows, k, dtype=torch.long), torch.empty(rows, k))


def int8_matmul(values: Tensor, scales: Tensor, bias: Tensor | None, x: Tensor) -> Tensor | None:
    """The product with weights in 8 bits by `lm.kernels.matmul`, from the first on: it rounds otherwise than torch.

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
    if not code_cache.is_ready():
        return None
    code_cache.initialise()
    from lm.kernels import matmul

    rows = x.numel() // x.shape[-1]
    out = np.empty((rows, len(values)), np.float32)
    shift = np.empty(0, np.float32) if bias is None else bias.detach().numpy()
    inputs = x.detach().reshape(rows, -1).contiguous().numpy()
    threads = code_cache.sync_threads()
    with code_cache.exclusive(threads):
        matmul.matmul(values.numpy(), scales.numpy(), shift, inputs, out, False, threads)
    return torch.from_numpy(out).view(*x.shape[:-1], -1)


def top_k(logits: Tensor, filtered: Tensor, k: int) -> TopK | None:
    """The `k` best filtered logits of each row by `lm.kernels.topk`; torch rounds log-probabilities otherwise.

    Args:
        logits: (rows, n), before any filter.
        filtered: (rows, n).
        k: at most n.

    Returns:
        None where torch is to find them: on other devices, in other types, or where nothing was compiled.
    """
    known = all(each.device.type == "cpu" and each.dtype is torch.float32 for each in (logits, filtered))
    if not known or not code_cache.is_ready():
        return None
    code_cache.initialise()
    from lm.kernels import topk

    found = TopK.empty(len(logits), k)
    topk.top_k(*(each.contiguous().numpy() for each in (logits, filtered, *found)))
    return found
