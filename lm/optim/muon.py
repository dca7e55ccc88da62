"""The Muon optimizer, with batched orthogonalisation of matrices of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lm.distributed.parallel import Ranks, full_tensor, shard_like

_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NS_STEPS = 5
_MIN_ASPECT_RATIO = 1.5
"""Columns per row from which iterating on Gram matrices takes fewer FLOPs."""
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
        ranks: Ranks = "single",
    ) -> None:
        """Create the optimizer for matrices of hidden layers, (outputs, inputs); several may be stacked in a parameter.

        Args:
            parameters: maps each parameter to the row counts of the matrices stacked in it, as in fused QKV.
            weight_decay: multiplied by the learning rate.
            momentum: decay of the gradient's moving average.
            dtype: of the orthogonalisation, which may be approximate.
            ranks: whether several ranks divide the matrices of a shape and gather their updates (DDP), or gather and
                orthogonalise one parameter at a time, of which each has a shard (FSDP).
        """
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype, self._ranks = dtype, ranks
        self._rows = {parameter: list(rows) for parameter, rows in parameters.items()}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, is_sharded = group["lr"], self._ranks == "sharded"
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for at_once in [[weight] for weight in weights] if is_sharded else [weights]:
                for weight in at_once:
                    if "momentum" not in self.state[weight]:
                        self.state[weight]["momentum"] = torch.zeros_like(weight)
                averages = [self.state[weight]["momentum"] for weight in at_once]
                gradients: list[Any] = [weight.grad for weight in at_once]
                torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
                nesterov = [*map(full_tensor, torch._foreach_lerp(gradients, averages, group["momentum"]))]
                torch._foreach_mul_(at_once, 1 - rate * group["weight_decay"])
                # shards get their part of an update that is computed in full
                targets = [torch.zeros_like(update) for update in nesterov] if is_sharded else at_once
                by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
                for weight, *stacked in zip(at_once, targets, nesterov, strict=True):
                    for matrices in zip(*(tensor.split(self._rows[weight]) for tensor in stacked), strict=True):
                        by_shape.setdefault(matrices[0].shape, []).append(matrices)
                for shape, pairs in by_shape.items():
                    of_shape, updates = map(list, zip(*pairs, strict=True))
                    orthogonal = self._orthogonalise(torch.stack(updates).to(self._dtype)).to(updates[0].dtype)
                    scale = _ADAMW_UPDATE_RMS * max(shape) ** 0.5
                    torch._foreach_add_(of_shape, [*orthogonal], alpha=-rate * scale)
                if is_sharded:
                    at_once[0].add_(shard_like(at_once[0], targets[0]))

    def _orthogonalise(self, matrices: Tensor) -> Tensor:
        """Orthogonalise (matrices, rows, columns); replicated ranks divide them."""
        if self._ranks != "replicated":
            return orthogonalise(matrices)
        n_per_rank = -(-len(matrices) // dist.get_world_size())
        begin = dist.get_rank() * n_per_rank
        part = orthogonalise(matrices[begin : begin + n_per_rank])
        padded = F.pad(part, (0, 0, 0, 0, 0, n_per_rank - len(part))).contiguous()
        gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, padded)
        return torch.cat(gathered)[: len(matrices)]


def orthogonalise(matrices: Tensor) -> Tensor:
    """Orthogonalise (matrices, rows, columns): singular values become about 0.7 to 1.2.

    In float32 it iterates on Gram matrices where that takes fewer FLOPs; the rounding errors of bfloat16 would grow.

    Source: the Newton-Schulz iteration of Jordan et al. 2024.
    """
    a, b, c = _NS_COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    rows, columns = x.shape[-2:]
    if x.dtype is torch.float32 and columns >= _MIN_ASPECT_RATIO * rows:
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
