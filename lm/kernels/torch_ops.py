"""Compiled kernels for torch tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.kernels import code_cache

_parallel = threading.Lock()


class TopK(NamedTuple):
    """The k largest numbers of each row, in order, of equal ones the first one first: (rows, k) each.

    Attributes:
        values: the numbers.
        indices: in their row.
        logprobs: their log-probabilities, of the unfiltered logits.
    """

    values: Tensor
    indices: Tensor
    logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, k: int) -> TopK:
        return cls(torch.empty(rows, k), torch.empty(rows, k, dtype=torch.long), torch.empty(rows, k))


def int8_matmul(values: Tensor, scales: Tensor, bias: Tensor | None, x: Tensor) -> Tensor | None:
    """Multiply by int8 weights with `lm.kernels.matmul`, from one row on: it rounds differently from torch.

    Args:
        values: (outputs, inputs) int8.
        scales: (outputs,) float32, of the values.
        bias: (outputs,) float32.
        x: (…, inputs).

    Returns:
        (…, outputs) float32; None for torch to compute it: on other devices, in other dtypes, with gradients, or
        without compiled code.
    """
    is_trained = torch.is_grad_enabled() and x.requires_grad
    if x.device.type != "cpu" or x.dtype is not torch.float32 or is_trained or not code_cache.is_complete():
        return None
    initialise_numba()
    from lm.kernels import matmul

    rows = x.numel() // x.shape[-1]
    out = np.empty((rows, len(values)), np.float32)
    shift = np.empty(0, np.float32) if bias is None else bias.detach().numpy()
    inputs = x.detach().reshape(rows, x.shape[-1]).contiguous().numpy()
    with numba_threads() as threads:
        matmul.matmul(values.numpy(), scales.numpy(), shift, inputs, out, False, threads)
    return torch.from_numpy(out).view(*x.shape[:-1], len(values))


def top_k(logits: Tensor, filtered: Tensor, k: int) -> TopK:
    """Find the top k filtered logits of each row with `lm.kernels.vector_ops`; torch rounds differently.

    Args:
        logits: (rows, n) float32 on the CPU, unfiltered.
        filtered: like `logits`.
        k: at most n.
    """
    initialise_numba()
    from lm.kernels import vector_ops

    result = TopK.empty(len(logits), k)
    vector_ops.top_k(*(tensor.contiguous().numpy() for tensor in (logits, filtered, *result)))
    return result


@cache
def initialise_numba() -> None:
    """Point numba to the folder of compiled code, and start its threads; call it before kernels are imported.

    The threads may belong to the OpenMP that torch uses: starting them changes torch's number, which is restored.
    """
    import numba

    numba.config.CACHE_DIR = str(code_cache.code_folder())
    n_threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(n_threads)


@contextmanager
def numba_threads() -> Iterator[int]:
    """Yield torch's number of threads, set for numba too; several to one caller at a time, as its own pool needs."""
    import numba

    n_threads = torch.get_num_threads()
    with _parallel if n_threads > 1 else nullcontext():
        if n_threads > 1:
            numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))
        yield n_threads
