"""Muon for weights that are replicated (DDP) or sharded (FSDP) over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from lm.optim.muon import Muon, update_scale


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
    """Muon for FSDP: each rank gathers and orthogonalises one matrix at a time, and scatters the update.

    Source: Liu et al. 2025 (Moonlight), section 2.3, who gather on every rank.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient; collective."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            size = dist.get_world_size()
            for first in range(0, len(parameters), size):
                self._update_together(parameters[first : first + size], group)

    def _update_together(self, parameters: list[DTensor], group: dict[str, Any]) -> None:
        """Update up to `world_size` parameters, one on each rank."""
        shards = [self._nesterov_gradient(parameter, group) for parameter in parameters]
        gathered = [
            _gather(shard, parameter, to=rank)
            for rank, (shard, parameter) in enumerate(zip(shards, parameters, strict=True))
        ]
        own = dist.get_rank()
        updates = self._orthogonalised_update(parameters[own], gathered[own]) if own < len(parameters) else None
        for rank, parameter in enumerate(parameters):
            weight = parameter.to_local()
            update = _scatter(updates if rank == own else None, parameter, source=rank)
            weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])

    def _nesterov_gradient(self, parameter: DTensor, group: dict[str, Any]) -> Tensor:
        """Update the momentum with the gradient, and return this rank's shard of the Nesterov gradient."""
        assert isinstance(parameter.grad, DTensor)
        if "momentum" not in self.state[parameter]:
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradient, momentum = parameter.grad.to_local(), self.state[parameter]["momentum"].to_local()
        momentum.lerp_(gradient, 1 - group["momentum"])
        return torch.lerp(gradient, momentum, group["momentum"])

    def _orthogonalised_update(self, parameter: Tensor, gradient: Tensor | None) -> Tensor:
        """Return the update of a full parameter, in which matrices may be stacked."""
        assert gradient is not None
        updates = [
            self._orthogonalise(matrix[None].to(self._dtype))[0].to(gradient.dtype) * update_scale(matrix.shape)
            for matrix in gradient.split(self._rows[parameter])
        ]
        return torch.cat(updates)


def _rows_per_shard(parameter: Tensor) -> int:
    """Return the rows per shard; the last ranks may have fewer or none."""
    return -(-len(parameter) // dist.get_world_size())


def _gather(shard: Tensor, parameter: DTensor, *, to: int) -> Tensor | None:
    """Gather all rows on one rank; None on the others."""
    rows = _rows_per_shard(parameter)
    padded = F.pad(shard, (0, 0, 0, rows - len(shard))).to(parameter.device_mesh.device_type)
    is_here = dist.get_rank() == to
    gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size())] if is_here else None
    dist.gather(padded, gathered, dst=to)
    return torch.cat(gathered)[: len(parameter)] if gathered is not None else None


def _scatter(full: Tensor | None, parameter: DTensor, *, source: int) -> Tensor:
    """Scatter the rows of a full tensor from rank `source`; returns this rank's."""
    rows, weight = _rows_per_shard(parameter), parameter.to_local()
    shard = weight.new_empty(rows, parameter.shape[1], device=parameter.device_mesh.device_type)
    parts = None
    if full is not None:
        padding = rows * dist.get_world_size() - len(full)
        parts = list(F.pad(full, (0, 0, 0, padding)).split(rows))
    dist.scatter(shard, parts, src=source)
    return shard[: len(weight)].to(weight.device)
