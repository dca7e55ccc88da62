"""Muon on matrices of which each process has some rows: each is gathered by one process, which orthogonalises it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from lm.optim.muon import Muon, orthogonalised, size_of_update


class ShardedMuon(Muon):
    """Muon for weights that are cut by rows. As many matrices as there are processes are at work at a time.

    Source: Liu et al. 2025 (Moonlight), section 2.3, who gather in every process.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient; all processes do this at the same time."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            size = dist.get_world_size()
            for first in range(0, len(parameters), size):
                self._update_together(parameters[first : first + size], group)

    def _update_together(self, parameters: list[DTensor], group: dict[str, Any]) -> None:
        """Update as many parameters as there are processes at most, each of which works on one."""
        shares = [self._ahead(parameter, group) for parameter in parameters]
        gathered = [
            _gathered(share, parameter, to=rank)
            for rank, (share, parameter) in enumerate(zip(shares, parameters, strict=True))
        ]
        mine = dist.get_rank()
        updates = self._updates(parameters[mine], gathered[mine]) if mine < len(parameters) else None
        for rank, parameter in enumerate(parameters):
            weight = parameter.to_local()
            update = _scattered(updates if rank == mine else None, parameter, source=rank)
            weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])

    def _ahead(self, parameter: DTensor, group: dict[str, Any]) -> Tensor:
        """This process's share of the gradient with its momentum, which takes the gradient in."""
        assert isinstance(parameter.grad, DTensor)
        if "momentum" not in self.state[parameter]:
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradient, momentum = parameter.grad.to_local(), self.state[parameter]["momentum"].to_local()
        momentum.lerp_(gradient, 1 - group["momentum"])
        return torch.lerp(gradient, momentum, group["momentum"])

    def _updates(self, parameter: Tensor, ahead: Tensor | None) -> Tensor:
        """The update of a whole parameter, in which several matrices may be stacked."""
        assert ahead is not None
        updates = [
            orthogonalised(matrix[None].to(self._dtype))[0].to(ahead.dtype) * size_of_update(matrix.shape)
            for matrix in ahead.split(self._rows[parameter])
        ]
        return torch.cat(updates)


def _rows_of_a_share(parameter: Tensor) -> int:
    """Of the first processes; the last ones may have fewer, or none."""
    return -(-len(parameter) // dist.get_world_size())


def _gathered(share: Tensor, parameter: DTensor, *, to: int) -> Tensor | None:
    """All rows of which each process has a share, in one process; None in the others."""
    rows = _rows_of_a_share(parameter)
    padded = F.pad(share, (0, 0, 0, rows - len(share))).to(parameter.device_mesh.device_type)
    is_here = dist.get_rank() == to
    found = [torch.empty_like(padded) for _ in range(dist.get_world_size())] if is_here else None
    dist.gather(padded, found, dst=to)
    return torch.cat(found)[: len(parameter)] if found is not None else None


def _scattered(whole: Tensor | None, parameter: DTensor, *, source: int) -> Tensor:
    """The rows of this process, of a tensor that one process has."""
    rows, weight = _rows_of_a_share(parameter), parameter.to_local()
    share = weight.new_empty(rows, parameter.shape[1], device=parameter.device_mesh.device_type)
    parts = None
    if whole is not None:
        padding = rows * dist.get_world_size() - len(whole)
        parts = list(F.pad(whole, (0, 0, 0, padding)).split(rows))
    dist.scatter(share, parts, src=source)
    return share[: len(weight)].to(weight.device)
