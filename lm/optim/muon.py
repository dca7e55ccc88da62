"""The Muon optimizer, with batched orthogonalisation of matrices of one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lm.config.training import Orthogonalisation
from lm.distributed.parallel import full_tensor, shard_like

_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5
_MIN_ASPECT_RATIO = 1.5
"""Columns per row from which iterating on Gram matrices takes fewer FLOPs."""
_EPSILON = 1e-7
_ADAMW_UPDATE_RMS = 0.2


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates of matrices.

    Updates are scaled to the RMS of AdamW's (0.2), so that its learning rate and weight decay can be used. Equals
    `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, which handles one matrix at a time and is slow for small models.

    Source: Jordan et al. 2024; scale of the update: Liu et al. 2025 (Moonlight), section 2.2.
    """

    def __init__(
        self,
        parameters: Mapping[Tensor, Sequence[int]],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.bfloat16,
        orthogonalisation: Orthogonalisation = "gram-newton-schulz",
    ) -> None:
        """Create the optimizer for matrices of hidden layers, (outputs, inputs); several may be stacked in a parameter.

        Args:
            parameters: maps each parameter to the row counts of the matrices stacked in it, as in fused QKV.
            weight_decay: multiplied by the learning rate.
            momentum: decay of the gradient's moving average.
            dtype: of the orthogonalisation, which may be approximate.
        """
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype, self._iteration = dtype, orthogonalisation
        self._rows = {parameter: list(rows) for parameter, rows in parameters.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            gradients = {weight: weight.grad for weight in group["params"] if weight.grad is not None}
            self._update_parameters(gradients, group)

    def _update_parameters(self, gradients: Mapping[Tensor, Tensor], group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
        for parameter, gradient in gradients.items():
            stacked = (parameter, gradient, self._momentum(parameter))
            for matrix in zip(*(tensor.split(self._rows[parameter]) for tensor in stacked), strict=True):
                by_shape.setdefault(matrix[0].shape, []).append(matrix)
        for matrices in by_shape.values():
            self._update(*map(list, zip(*matrices, strict=True)), group=group)

    def _momentum(self, parameter: Tensor) -> Tensor:
        if "momentum" not in self.state[parameter]:
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = self.state[parameter]["momentum"]
        return momentum

    def _update(
        self, weights: list[Tensor], gradients: list[Tensor], momentum_buffers: list[Tensor], *, group: dict[str, Any]
    ) -> None:
        """Update matrices of one shape."""
        torch._foreach_lerp_(momentum_buffers, gradients, 1 - group["momentum"])
        nesterov = torch.stack(torch._foreach_lerp(gradients, momentum_buffers, group["momentum"]))
        scale = update_scale(weights[0].shape)
        updates = self._orthogonalise(nesterov.to(self._dtype)).to(weights[0].dtype)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(updates.unbind()), alpha=-group["lr"] * scale)

    def _orthogonalise(self, matrices: Tensor) -> Tensor:
        """Orthogonalise (matrices, rows, columns)."""
        return orthogonalise(matrices, self._iteration)


class ReplicatedMuon(Muon):
    """Muon for DDP: each rank orthogonalises its part of the matrices of a shape, and all ranks gather them.

    Source: Jordan et al. 2024.
    """

    def _orthogonalise(self, matrices: Tensor) -> Tensor:
        """See `orthogonalise`; collective."""
        n_per_rank = -(-len(matrices) // dist.get_world_size())
        begin = dist.get_rank() * n_per_rank
        part = super()._orthogonalise(matrices[begin : begin + n_per_rank])
        padded = F.pad(part, (0, 0, 0, 0, 0, n_per_rank - len(part))).contiguous()
        gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, padded)
        return torch.cat(gathered)[: len(matrices)]


class ShardedMuon(Muon):
    """Muon for FSDP: ranks gather and orthogonalise one parameter at a time, and each keeps its shard of the update."""

    def _update_parameters(self, gradients: Mapping[Tensor, Tensor], group: dict[str, Any]) -> None:
        for parameter, gradient in gradients.items():
            momentum = self._momentum(parameter)
            momentum.lerp_(gradient, 1 - group["momentum"])
            nesterov = full_tensor(torch.lerp(gradient, momentum, group["momentum"]))
            updates = [
                self._orthogonalise(matrix[None].to(self._dtype))[0].to(matrix.dtype) * update_scale(matrix.shape)
                for matrix in nesterov.split(self._rows[parameter])
            ]
            update = shard_like(parameter, torch.cat(updates))
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])


def update_scale(shape: torch.Size) -> float:
    """Return the factor of an orthogonalised update, besides the learning rate."""
    return _ADAMW_UPDATE_RMS * max(shape) ** 0.5


def orthogonalise(matrices: Tensor, iteration: Orthogonalisation = "gram-newton-schulz") -> Tensor:
    """Orthogonalise (matrices, rows, columns): singular values become about 0.7 to 1.2.

    Args:
        iteration: "gram-newton-schulz" iterates on Gram matrices where that takes fewer FLOPs, but only in float32: the
            rounding errors of bfloat16 would grow.

    Source: the Newton-Schulz iteration of Jordan et al. 2024.
    """
    a, b, c = _NS_COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPSILON)
    rows, columns = x.shape[-2:]
    if iteration == "gram-newton-schulz" and x.dtype is torch.float32 and columns >= _MIN_ASPECT_RATIO * rows:
        x = _compose_iterations(x @ x.mT, _NS_STEPS) @ x
    else:
        for _ in range(_NS_STEPS):
            gram = x @ x.mT
            polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def _compose_iterations(gram: Tensor, steps: int) -> Tensor:
    """Return what `steps` iterations together multiply matrices by, given their (matrices, rows, rows) Gram matrices.

    An iteration takes 4 rows³ MACs, and on the matrices themselves 2 rows² columns + rows³.
    """
    a, b, c = _NS_COEFFICIENTS
    polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
    if steps == 1:
        return polynomial
    return _compose_iterations(polynomial @ gram @ polynomial, steps - 1) @ polynomial
