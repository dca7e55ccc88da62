"""Cross-entropy with label smoothing, computed in chunks so that the logits of all positions never exist at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.config.run_config import IGNORE_INDEX

_LOGITS_ON_CPU, _LOGITS_ON_GPU = 1 << 25, 1 << 27
"""Logits per chunk, in the dtype of the matmul."""
_MIN_ROWS = 64
"""The fewest positions per chunk, however large the vocabulary is."""
_PROBABILITIES_ON_CPU = 1 << 20
"""Probabilities computed at a time on a CPU, in float32, so that they stay in its cache."""
_AUTOGRAD_LOGITS_ON_CPU, _AUTOGRAD_LOGITS_ON_GPU = 1 << 22, 1 << 25
"""Logits per pass and chunk where autograd differentiates the loss."""
_GPU_ALIGNMENT = 64
"""A GPU multiplies by matrices with a multiple of this many rows: with 50,257 in bfloat16 an H200 makes 93 to 141
TFLOP/s, with 50,304 it makes 664 to 701."""

OutputLayer = tuple[Tensor, Tensor | None]
"""(vocabulary, d_model) weights, and a (vocabulary,) bias if there is one."""

ChunkLoss = Callable[[Tensor, OutputLayer, Tensor], tuple[Tensor, Tensor]]
"""(passes, n, d_model) final states, an output layer, their (n,) positions -> loss and surprisal, summed over them."""


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the summed surprisal of the targets, in nats; targets of -100 (padding) are ignored.

    Args:
        logits: (…, vocabulary), of any float dtype; the sum is float32.
        targets: (…) ids.
        label_smoothing: probability spread uniformly over the vocabulary (Szegedy et al. 2016).
    """
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    target_positions: Tensor | slice | None = None,
    label_smoothing: float = 0.0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute `cross_entropy(hidden @ weightᵀ + bias, targets)` in chunks of rows, together with its gradient.

    Each chunk's logits are freed before the next ones are computed, so memory doesn't grow with positions × vocabulary,
    and rows without a target are skipped. Under autocast the matmuls use its dtype, as `F.linear` would.

    Args:
        hidden: (…, d_model).
        weight: (vocabulary, d_model).
        targets: (…) IDs, IGNORE_INDEX where none.
        bias: (vocabulary,), if the logits have one.
        target_positions: (n,) indices of positions with a target, in the order of `targets.flatten()`, or
            `slice(None)` if all have one; searching them on a GPU would synchronise.
        softcap: see `Transformer.logits`; 0 for none.

    Returns:
        The loss, and the summed surprisal without label smoothing, which has no gradient.

    Source: the idea of Hsu et al. 2024 (Liger Kernel).
    """
    targets, states = targets.flatten(), hidden.flatten(0, -2)
    positions = _target_positions(targets) if target_positions is None else target_positions
    loss, surprisal, gradients = _compute_linear_cross_entropy(
        states, weight, bias, targets, positions, label_smoothing, softcap, wants_gradient=torch.is_grad_enabled()
    )
    total: Tensor = _Precomputed.apply(loss, gradients, states, weight, bias)  # type: ignore[no-untyped-call]
    return total, surprisal


def _target_positions(targets: Tensor) -> Tensor:
    return (targets != IGNORE_INDEX).nonzero()[:, 0]


class _Precomputed(torch.autograd.Function):
    """A loss with the gradients of its inputs; backward scales them in place, as those of a vocabulary are large."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor | None], *_: Tensor | None) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        scaled = (None if gradient is None else gradient.mul_(loss_gradient) for gradient in gradients)
        return None, None, *scaled


def chunked_loss(
    loss: ChunkLoss, hidden: Tensor, output: OutputLayer, target_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum a loss over all positions that have a target, in chunks of positions, together with its gradient.

    The surprisal that `loss` returns beside the loss is summed too, without a gradient. Memory doesn't grow with
    positions × vocabulary, as in `linear_cross_entropy`; autograd differentiates each chunk.

    Args:
        loss: computes logits from final states and the output layer, and sums over the positions; see `ChunkLoss`.
        hidden: (passes, positions, d_model).
        target_positions: (n,) indices.
    """
    inputs = [tensor for tensor in (hidden, *output) if tensor is not None]
    gradients = [torch.zeros_like(tensor) for tensor in inputs]
    total, surprisal = (torch.zeros((), device=hidden.device) for _ in range(2))
    logits = _AUTOGRAD_LOGITS_ON_CPU if hidden.device.type == "cpu" else _AUTOGRAD_LOGITS_ON_GPU
    weight, *bias = (part.detach().requires_grad_() for part in inputs[1:])  # cast once, as autocast keeps its casts
    for some in target_positions.split(max(_MIN_ROWS, logits // len(weight))):
        with torch.enable_grad():
            states = hidden[:, some].detach().requires_grad_()
            nats, nll = loss(states, (weight, bias[0] if bias else None), some)
            gradients[0][:, some], *others = torch.autograd.grad(nats, (states, weight, *bias))
        for gradient, of_chunk in zip(gradients[1:], others, strict=True):
            gradient.add_(of_chunk)
        total += nats.detach()
        surprisal += nll.detach()
    with_gradient: Tensor = _Precomputed.apply(total, gradients, *inputs)  # type: ignore[no-untyped-call]
    return with_gradient, surprisal


@torch.no_grad()
def _compute_linear_cross_entropy(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    target_positions: Tensor | slice,
    smoothing: float,
    softcap: float,
    *,
    wants_gradient: bool,
) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    """Return loss, surprisal, and the gradients of hidden states, weight and bias, while the logits exist."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    size, on_cpu = len(weight), device == "cpu"
    inputs, matrix = hidden[target_positions].to(dtype), weight.to(dtype)
    target_column = targets[target_positions, None]
    if not on_cpu and size % _GPU_ALIGNMENT:
        matrix = F.pad(matrix, (0, 0, 0, -size % _GPU_ALIGNMENT))
    rows, rows_of_softmax = _rows_per_chunk(len(inputs), size, on_cpu=on_cpu)
    logits_buffer = matrix.new_empty(rows, len(matrix))  # allocating per chunk would cost more than arithmetic
    probabilities = torch.empty(rows_of_softmax, len(matrix), device=hidden.device)
    inputs_gradient, weight_gradient = torch.empty_like(inputs), None
    bias_gradient = None if bias is None else torch.zeros_like(bias)
    total, nll = (torch.zeros((), device=hidden.device) for _ in range(2))
    for start in range(0, len(inputs), max(1, rows)):
        part = slice(start, start + rows)
        logits = torch.mm(inputs[part], matrix.T, out=logits_buffer[: len(inputs) - start])
        if bias is not None:
            logits[:, :size] += bias
        for some, their_targets in zip(
            *(tensor.split(rows_of_softmax) for tensor in (logits, target_column[part])), strict=True
        ):
            gradient = probabilities[: len(some)]
            nats, surprisal = _surprisal_and_gradient(some, their_targets, size, smoothing, softcap, gradient)
            total += nats
            nll += surprisal
            if wants_gradient:
                some.copy_(gradient)
        if wants_gradient:
            if bias_gradient is not None:
                bias_gradient += logits[:, :size].sum(0, dtype=bias_gradient.dtype)
            torch.mm(logits, matrix, out=inputs_gradient[part])
            if weight.requires_grad:
                of_chunk = logits[:, :size].T @ inputs[part]
                weight_gradient = (
                    of_chunk if weight_gradient is None else weight_gradient.to(weight.dtype).add_(of_chunk)
                )
    hidden_gradient = inputs_gradient.to(hidden.dtype)
    if isinstance(target_positions, Tensor):
        hidden_gradient = torch.zeros_like(hidden).index_copy_(0, target_positions, hidden_gradient)
    if weight.requires_grad:
        weight_gradient = torch.zeros_like(weight) if weight_gradient is None else weight_gradient.to(weight.dtype)
    return total, nll, (hidden_gradient, weight_gradient, bias_gradient)


def _rows_per_chunk(positions: int, vocabulary: int, *, on_cpu: bool) -> tuple[int, int]:
    rows = min(positions, max(_MIN_ROWS, (_LOGITS_ON_CPU if on_cpu else _LOGITS_ON_GPU) // vocabulary))
    return rows, min(rows, max(1, _PROBABILITIES_ON_CPU // vocabulary)) if on_cpu else rows


def _surprisal_and_gradient(  # noqa: PLR0917 (nearly a kernel)
    logits: Tensor, targets: Tensor, size: int, smoothing: float, softcap: float, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the summed surprisal of (rows, 1) targets given (rows, vocabulary) logits, with and without smoothing.

    The gradient of the smoothed loss by the logits is written into `gradient`, (rows, vocabulary) float32. Columns from
    `size` on are padding, overwritten in the logits and zero in the gradient.

    With smoothing e, a target counts 1 - e, and each of the V ids e/V: the gradient is the softmax minus these. With
    soft-capping it is 1 - tanh² times that, and the logits, if they are float32, are overwritten.

    Only the softmax computes exponentials: the largest logit and its probability, which is at least 1/V, give the
    log-sum-exp.
    """
    if softcap:
        logits = logits.float().div_(softcap).tanh_().mul_(softcap)
    logits[:, size:] = -torch.inf
    torch.softmax(logits, -1, dtype=torch.float32, out=gradient)
    log_sum = logits.amax(-1, keepdim=True).float() - gradient.amax(-1, keepdim=True).log()
    surprisal = (log_sum - logits.gather(1, targets).float()).sum()
    nats = (1 - smoothing) * surprisal
    if smoothing:
        nats += smoothing * (log_sum - logits[:, :size].mean(-1, keepdim=True, dtype=torch.float32)).sum()
        gradient.sub_(smoothing / size)
    gradient.scatter_add_(1, targets, torch.full_like(targets, smoothing - 1, dtype=gradient.dtype))
    if softcap:
        gradient.addcmul_(gradient, logits.div_(softcap).square_(), value=-1)
    gradient[:, size:] = 0.0
    return nats, surprisal
