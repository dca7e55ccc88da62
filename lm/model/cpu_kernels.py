"""CPU kernels that replace torch's own where they are clearly faster: oneDNN's matmuls, and attention by blocks."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.model import ModelConfig
from lm.hardware import measure_speedup

_BLOCK, _MIN_LENGTH = 128, 512
"""Queries per block, and the positions beyond which attention is computed by blocks."""
_MIN_ONEDNN_MACS = 1_000_000
"""MACs from which a matmul may be computed by oneDNN."""
_ROWS, _INPUTS, _OUTPUTS, _HEADS, _TRIALS = 128, 256, 512, (1, 2, 1024, 64), 9
"""The matmul and the (batch, heads, positions, head) that are timed, and the number of trials."""
_MIN_SPEEDUP = 1.25
FUSED_ACTIVATION = "gelu-tanh"
"""The activation that oneDNN may fuse with the matmul."""

faster: set[tuple[str, torch.dtype]] = set()
"""The kernels, by name and dtype, that are used in this process: "linear", "gelu", "attention"."""


def choose_kernels(config: ModelConfig, dtype: torch.dtype) -> None:
    """Choose the kernels for inference with a model in this dtype: each is timed once per process, against torch's."""
    useful = {
        "linear": dtype is torch.float32,
        "gelu": config.activation == FUSED_ACTIVATION,
        "attention": dtype is torch.bfloat16 and not config.is_recurrent and config.context_length > _MIN_LENGTH,
    }
    for name in (name for name, is_useful in useful.items() if is_useful):
        if _is_clearly_faster(name, dtype):
            faster.add((name, dtype))


@cache
@torch.no_grad()
def _is_clearly_faster(name: str, dtype: torch.dtype) -> bool:
    """Time a kernel and torch's; the operands are realistic, since torch's tanh is slower where it saturates."""
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, _INPUTS, generator=numbers).to(dtype) for rows in (_ROWS, _OUTPUTS))
    weight *= _INPUTS**-0.5
    heads = torch.zeros(_HEADS, dtype=dtype)
    kernel, other = {
        "linear": (lambda: onednn_linear(x, weight, None), lambda: F.linear(x, weight)),
        "gelu": (
            lambda: onednn_linear_gelu(x, weight, None),
            lambda: F.gelu(linear(x, weight), approximate="tanh"),
        ),
        "attention": (
            lambda: blockwise_causal_attention(heads, heads, heads),
            lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        ),
    }[name]
    try:
        return measure_speedup(kernel, other, tries=_TRIALS) > _MIN_SPEEDUP
    except (AttributeError, RuntimeError):  # not supported by this torch or processor
        return False


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x` weightᵀ + bias: (…, inputs) and (outputs, inputs) -> (…, outputs).

    torch uses MKL for float32, which on some CPUs leaves half of the vector units idle, unlike oneDNN: 160 rows of 160
    by 480 weights, one thread of an AMD EPYC with AVX-512: MKL 103, oneDNN 206 GFLOP/s; with AVX2 103 and 111. Below a
    million MACs there is little difference.
    """
    return onednn_linear(x, weight, bias) if uses_onednn("linear", x, weight) else F.linear(x, weight, bias)


def uses_onednn(name: str, x: Tensor, weight: Tensor) -> bool:
    """Whether a kernel was chosen, and a matmul has a single dtype, no gradient, and is large enough to matter."""
    return (
        (name, x.dtype) in faster
        and weight.dtype is x.dtype
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and x.numel() * len(weight) >= _MIN_ONEDNN_MACS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def onednn_linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")


def uses_blocks(query: Tensor, n_keys: int) -> bool:
    """Whether causal attention from (batch, heads, queries, head) to as many keys is computed block by block.

    torch's fused CPU kernel computes in float32 between its matmuls and leaves most of a processor's bfloat16 units
    unused: 4 rows, 12 heads, 1024 positions, head 64, one thread of an AMD EPYC with AVX512-BF16: 132 ms, block by
    block 69 ms. In float32 blocks are slower. Training uses torch's kernels.
    """
    return (
        ("attention", query.dtype) in faster
        and query.device.type == "cpu"
        and query.shape[2] == n_keys > _MIN_LENGTH
        and not query.requires_grad
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def blockwise_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention: (batch, heads, length, head), with fewer key/value heads if grouped -> the same shape."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    batch, heads, length, head = query.shape
    output = query.new_empty(batch, length, heads, head).transpose(1, 2)  # the layout that the output projection reads
    query = (query * head**-0.5).flatten(0, 1)
    key, value = key.transpose(-1, -2).flatten(0, 1), value.flatten(0, 1)  # one copy for all blocks
    future = torch.full((_BLOCK, _BLOCK), -torch.inf, dtype=query.dtype).triu(1)
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        scores = query[:, start:end] @ key[:, :, :end]
        scores[..., start:] += future[: end - start, : end - start]
        output[:, :, start:end] = (scores.softmax(-1) @ value[:, :end]).unflatten(0, (batch, heads))
    return output
